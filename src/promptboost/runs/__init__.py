"""Runs: the whole way from images to a folder with a classifier, figures and a report in it.

Reading order: :mod:`~promptboost.config` (what is asked), :mod:`~promptboost.runs.preflight` (what is
wrong with it), :mod:`~promptboost.runs.learned` (the fit in memory), :mod:`~promptboost.runs.results`
(what is measured of it), :mod:`~promptboost.runs.fit` (all of it, written to a folder), then what is
done with a run: :mod:`~promptboost.runs.predict`, :mod:`~promptboost.runs.evaluate`,
:mod:`~promptboost.runs.transfer`, :mod:`~promptboost.runs.growth`.
"""

"""Runs: the whole way from images to a folder with a classifier, figures and a report in it.

Reading order: :mod:`~promptboost.config` (what is asked), :mod:`~promptboost.run.preflight` (what is
wrong with it), :mod:`~promptboost.run.measurement` (its figures), :mod:`~promptboost.run.results`
(what is measured of it), :mod:`~promptboost.run.fit` (all of it, written to a folder), then what is
done with a run: :mod:`~promptboost.run.predict`, :mod:`~promptboost.run.evaluate`,
:mod:`~promptboost.run.transfer`, :mod:`~promptboost.llm.growth`.
"""

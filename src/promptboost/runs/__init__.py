"""Runs: the whole way from images to a folder with a classifier, figures and a report in it.

Reading order: :mod:`~promptboost.config` (what is asked), :mod:`~promptboost.data.shots` (the
images), :mod:`~promptboost.runs.baselines` (the pool), :mod:`~promptboost.runs.baselines` (the fit),
:mod:`~promptboost.runs.baselines` (what it is compared with), :mod:`~promptboost.runs.fit` (all of
it, written to a folder), then what is done with a run: :mod:`~promptboost.runs.predict`,
:mod:`~promptboost.runs.evaluate`, :mod:`~promptboost.runs.transfer`.
"""

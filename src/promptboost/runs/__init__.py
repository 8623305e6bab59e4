"""Runs: the whole way from pictures to a folder with a classifier, figures and a report in it.

Reading order: :mod:`~promptboost.runs.settings` (what is asked), :mod:`~promptboost.runs.task` (the
pictures), :mod:`~promptboost.runs.words` (the pool), :mod:`~promptboost.runs.learning` (the fit),
:mod:`~promptboost.runs.measuring` (what it is compared with), :mod:`~promptboost.runs.fit` (all of
it, written to a folder), then what is done with a run: :mod:`~promptboost.runs.predict`,
:mod:`~promptboost.runs.evaluate`, :mod:`~promptboost.runs.transfer`.
"""

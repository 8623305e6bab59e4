"""Runs: from images to a folder with a classifier, metrics and a report.

Reading order: :mod:`~promptboost.config` (settings), :mod:`~promptboost.run.run_folder` (files and
locks), :mod:`~promptboost.run.results` (metrics), :mod:`~promptboost.run.fit` (all of it, written to a
folder), then the use of a run:
:mod:`~promptboost.run.predict`, :mod:`~promptboost.run.evaluate`, :mod:`~promptboost.run.transfer`,
:mod:`~promptboost.run.edit` with :mod:`~promptboost.run.holdout` and :mod:`~promptboost.run.versions`.
"""

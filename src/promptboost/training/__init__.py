"""From labelled rows and a pool of texts to an ensemble: boosting, written down as it goes.

:func:`fit_ensemble` is what both the command line and the estimator call.
"""

from promptboost.training.learner import OnRound, boost_settings, fit_ensemble
from promptboost.training.pool_rows import PoolTexts

__all__ = ["OnRound", "PoolTexts", "boost_settings", "fit_ensemble"]

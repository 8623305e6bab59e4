"""From labelled rows and a pool of texts to an ensemble: boosting, written down as it goes.

:func:`fit_ensemble` is what both the command line and the estimator call.
"""

from promptboost.fitting.fit import OnRound, fit_ensemble
from promptboost.fitting.texts import PoolTexts

__all__ = ["OnRound", "PoolTexts", "fit_ensemble"]

"""The default composer: Frank-Wolfe steps on the logistic loss that move copies between prompts.

:mod:`~promptboost.boosting.gradient.compose` is the algorithm; :mod:`~promptboost.boosting.gradient.banks`
chooses prompts, and :mod:`~promptboost.boosting.gradient.linesearch` the number of copies.
"""

"""The default composer: Frank-Wolfe steps on the logistic loss that move copies between prompts.

:mod:`~promptboost.boosting.gradient.compose` is the algorithm; :mod:`~promptboost.boosting.gradient.banks`
chooses prompts, :mod:`~promptboost.boosting.gradient.linesearch` the number of copies, and
:mod:`~promptboost.boosting.gradient.blocks` splits the classes among processes.
"""

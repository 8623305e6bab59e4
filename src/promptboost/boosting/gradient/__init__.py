"""The default composer: copies move between prompts along the gradient of the logistic loss.

:mod:`~promptboost.boosting.scale` chooses how much cosines count,
:mod:`~promptboost.boosting.gradient.compose` is the algorithm, :mod:`~promptboost.boosting.gradient.banks`
says which prompts gain and lose, :mod:`~promptboost.boosting.gradient.linesearch` how many copies.
"""

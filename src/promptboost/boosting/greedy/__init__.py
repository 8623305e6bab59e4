"""The paper's composer: in each step, the best prompt is appended to a bank.

:mod:`~promptboost.boosting.greedy.insertion` is the algorithm, :mod:`~promptboost.boosting.greedy.search`
finds the best prompt without computing all products, and :mod:`~promptboost.boosting.greedy.flips` has its
compiled loops.
"""

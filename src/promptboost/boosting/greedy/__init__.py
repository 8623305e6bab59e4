"""The paper's composer: prompts enter the banks one by one, each the best at its time.

:mod:`~promptboost.boosting.greedy.insertion` is the algorithm, :mod:`~promptboost.boosting.greedy.search`
finds the best prompt without multiplying everything, :mod:`~promptboost.boosting.greedy.flips` is compiled.
"""

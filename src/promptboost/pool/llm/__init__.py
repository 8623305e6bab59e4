"""Sentences asked from a language model.

Reading order: :mod:`~promptboost.pool.llm.questions` (what is asked),
:mod:`~promptboost.pool.llm.client` (who is asked), :mod:`~promptboost.pool.llm.cache` (what was
answered), :mod:`~promptboost.pool.llm.budget` and :mod:`~promptboost.pool.llm.asking` (many
questions at once), :mod:`~promptboost.pool.llm.cleaning` (replies become sentences),
:mod:`~promptboost.pool.llm.generating` (a whole pool), :mod:`~promptboost.pool.llm.growing` (more
about the classes a classifier still mixes up).
"""

from promptboost.pool.llm.asking import Answers, Manner, Retries, ask_all
from promptboost.pool.llm.budget import Budget
from promptboost.pool.llm.cache import ReplyCache
from promptboost.pool.llm.client import LanguageModel, ModelSettings, Reply, open_model
from promptboost.pool.llm.generating import Generated, Plan, generate_pool, plan
from promptboost.pool.llm.growing import Pair, confused_pairs, grow_pool
from promptboost.pool.llm.questions import Kind, Question, contrast_questions, questions_for

__all__ = [
    "Kind",
    "Question",
    "questions_for",
    "contrast_questions",
    "LanguageModel",
    "ModelSettings",
    "Reply",
    "open_model",
    "ReplyCache",
    "Budget",
    "Retries",
    "Manner",
    "Answers",
    "ask_all",
    "Generated",
    "Plan",
    "plan",
    "generate_pool",
    "Pair",
    "confused_pairs",
    "grow_pool",
]

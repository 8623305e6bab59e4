"""Sentences asked from a language model.

Reading order: :mod:`~promptboost.llm.questions` (what is asked),
:mod:`~promptboost.llm.client` (who is asked), :mod:`~promptboost.llm.replies` (what was
answered), :mod:`~promptboost.llm.requests` and :mod:`~promptboost.llm.requests` (many
questions at once), :mod:`~promptboost.llm.replies` (replies become sentences),
:mod:`~promptboost.llm.generation` (a whole pool), :mod:`~promptboost.llm.questions` (more
about the classes a classifier still mixes up).
"""

from promptboost.llm.client import LanguageModel, ModelSettings, Reply, open_model
from promptboost.llm.generation import Generated, Plan, generate_pool, plan
from promptboost.llm.questions import (
    Kind,
    Pair,
    Question,
    confused_pairs,
    contrast_questions,
    grow_pool,
    questions_for,
)
from promptboost.llm.replies import ReplyCache
from promptboost.llm.requests import Answers, Budget, Manner, Retries, ask_all

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

"""Sentences asked from a language model.

Reading order: :mod:`~promptboost.llm.questions` (what is asked, also about the classes a classifier
still mixes up), :mod:`~promptboost.llm.client` and :mod:`~promptboost.llm.adapters` (who is asked),
:mod:`~promptboost.llm.requests` (many questions at once), :mod:`~promptboost.llm.replies` (replies
are kept, and become sentences), :mod:`~promptboost.llm.generation` (a whole pool).
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

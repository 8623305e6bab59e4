"""Sentences from a language model.

Reading order: :mod:`~promptboost.llm.questions`, :mod:`~promptboost.llm.client` (one question to one
server), :mod:`~promptboost.llm.replies` (the reply cache; replies to sentences),
:mod:`~promptboost.llm.requests` (many questions, within a budget), :mod:`~promptboost.llm.generation`
(a whole pool), :mod:`~promptboost.llm.growth` (more sentences for a run).
"""

from promptboost.llm.client import Client, ModelSettings, Reply
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
from promptboost.llm.requests import Answers, Budget, RequestPolicy, ask_all

__all__ = [
    "Kind",
    "Question",
    "questions_for",
    "contrast_questions",
    "Client",
    "ModelSettings",
    "Reply",
    "ReplyCache",
    "Budget",
    "RequestPolicy",
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

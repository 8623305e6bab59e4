"""Result: the fitted thing as text, rounds × classes × {prompt: copies}."""

from promptboost.model.ensemble import PromptEnsemble, Round
from promptboost.model.head import LinearHead
from promptboost.model.schema import json_schema
from promptboost.model.voting import VotingHead

__all__ = ["PromptEnsemble", "Round", "json_schema", "LinearHead", "VotingHead"]

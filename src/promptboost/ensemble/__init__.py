"""Result: the fitted thing as text, rounds × classes × {prompt: copies}."""

from promptboost.ensemble.ensemble import PromptEnsemble
from promptboost.ensemble.reading import json_schema
from promptboost.ensemble.rounds import Round

__all__ = ["PromptEnsemble", "Round", "json_schema"]

"""Words: class names, templates and sentences about classes become a pool of prompts."""

from promptboost.pool.build import Concatenate, build_pool
from promptboost.pool.descriptions import (
    DescriptionMatch,
    emoji_descriptions,
    match_descriptions,
    read_descriptions,
)
from promptboost.pool.pool import Prompt, PromptPool
from promptboost.pool.templates import TEMPLATES, clip_templates, fill

__all__ = [
    "Prompt",
    "PromptPool",
    "build_pool",
    "Concatenate",
    "TEMPLATES",
    "clip_templates",
    "fill",
    "read_descriptions",
    "match_descriptions",
    "DescriptionMatch",
    "emoji_descriptions",
]

"""Words: class names, templates and sentences about classes become a pool of prompts."""

from promptboost.pool.build import Concatenate, build_pool
from promptboost.pool.combining import deduplicate, from_sources, union
from promptboost.pool.descriptions import (
    DescriptionMatch,
    emoji_descriptions,
    match_descriptions,
    read_descriptions,
)
from promptboost.pool.keeping import load_pool, save_pool
from promptboost.pool.pool import Prompt, PromptPool
from promptboost.pool.templates import TEMPLATES, clip_templates, fill

__all__ = [
    "Prompt",
    "PromptPool",
    "build_pool",
    "Concatenate",
    "union",
    "from_sources",
    "deduplicate",
    "save_pool",
    "load_pool",
    "TEMPLATES",
    "clip_templates",
    "fill",
    "read_descriptions",
    "match_descriptions",
    "DescriptionMatch",
    "emoji_descriptions",
]

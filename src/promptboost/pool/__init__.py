"""Words: class names, templates and sentences about classes become a pool of prompts.

What reads files and brings names together is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from promptboost.pool.build import Concatenate, build_pool
from promptboost.pool.combining import deduplicate, from_sources, union
from promptboost.pool.descriptions import (
    DescriptionMatch,
    emoji_descriptions,
    match_descriptions,
    read_descriptions,
)
from promptboost.pool.keeping import is_saved_pool, load_pool, save_pool
from promptboost.pool.pool import Prompt, PromptPool
from promptboost.pool.templates import PLAIN_TEMPLATE, TEMPLATES, clip_templates, fill

if TYPE_CHECKING:
    from promptboost.pool.aliases import Resolution, read_synonyms, resolve
    from promptboost.pool.checking import check_meeting
    from promptboost.pool.classes import read_class_names
    from promptboost.pool.from_files import choose_sources, join_pool, read_pool, rename_classes
    from promptboost.pool.meeting import Meeting, join, meet
    from promptboost.pool.readers import KINDS, Source, read_source, read_sources

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
    "is_saved_pool",
    "TEMPLATES",
    "PLAIN_TEMPLATE",
    "clip_templates",
    "fill",
    "read_descriptions",
    "match_descriptions",
    "DescriptionMatch",
    "emoji_descriptions",
    "KINDS",
    "Source",
    "read_source",
    "read_sources",
    "read_class_names",
    "read_synonyms",
    "resolve",
    "Resolution",
    "meet",
    "Meeting",
    "join",
    "check_meeting",
    "read_pool",
    "join_pool",
    "choose_sources",
    "rename_classes",
]

_HOME = {
    **dict.fromkeys(("KINDS", "Source", "read_source", "read_sources"), "readers"),
    **dict.fromkeys(("Resolution", "read_synonyms", "resolve"), "aliases"),
    **dict.fromkeys(("Meeting", "join", "meet"), "meeting"),
    **dict.fromkeys(("choose_sources", "join_pool", "read_pool", "rename_classes"), "from_files"),
    "check_meeting": "checking",
    "read_class_names": "classes",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Words: class names, templates and sentences about classes become a pool of prompts."""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.pool.build import (
        Concatenate,
        build_pool,
        emoji_descriptions,
        read_descriptions,
    )
    from promptboost.pool.combination import deduplicate, from_sources, union
    from promptboost.pool.io import is_saved_pool, load_pool, save_pool
    from promptboost.pool.lint import check_meeting
    from promptboost.pool.names import Resolution, read_class_names, read_synonyms, resolve
    from promptboost.pool.pool import PromptPool
    from promptboost.pool.products import Prompt
    from promptboost.pool.readers import KINDS, Reader, Source, kinds, read_source, read_sources
    from promptboost.pool.sources import (
        Meeting,
        choose_sources,
        join,
        join_pool,
        meet,
        read_pool,
        rename_classes,
    )
    from promptboost.pool.templates import PLAIN_TEMPLATE, TEMPLATES, clip_templates, fill

__all__ = [
    "Prompt",
    "PromptPool",
    "build_pool",
    "Concatenate",
    "union",
    "deduplicate",
    "from_sources",
    "save_pool",
    "load_pool",
    "is_saved_pool",
    "TEMPLATES",
    "PLAIN_TEMPLATE",
    "clip_templates",
    "fill",
    "read_descriptions",
    "emoji_descriptions",
    "KINDS",
    "kinds",
    "Reader",
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

# Reading the text of a run needs the rules for names only.
__getattr__ = on_first_use(
    __name__,
    {
        "build": ["Concatenate", "build_pool", "emoji_descriptions", "read_descriptions"],
        "combination": ["deduplicate", "from_sources", "union"],
        "io": ["is_saved_pool", "load_pool", "save_pool"],
        "lint": ["check_meeting"],
        "names": ["Resolution", "read_class_names", "read_synonyms", "resolve"],
        "pool": ["PromptPool"],
        "products": ["Prompt"],
        "readers": ["KINDS", "Reader", "Source", "kinds", "read_source", "read_sources"],
        "sources": [
            "Meeting",
            "choose_sources",
            "join",
            "join_pool",
            "meet",
            "read_pool",
            "rename_classes",
        ],
        "templates": ["PLAIN_TEMPLATE", "TEMPLATES", "clip_templates", "fill"],
    },
)

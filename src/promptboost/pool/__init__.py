"""Prompt pools: class names, templates and sentences about classes."""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.pool.io import is_saved_pool, load_pool, save_pool
    from promptboost.pool.names import read_class_names, read_synonyms
    from promptboost.pool.pool import (
        Concatenate,
        Prompt,
        PromptPool,
        build_pool,
        deduplicate,
        from_sources,
        union,
    )
    from promptboost.pool.readers import (
        KINDS,
        Reader,
        Source,
        emoji_descriptions,
        kinds,
        read_descriptions,
        read_source,
        read_sources,
    )
    from promptboost.pool.sources import read_pool, rename_classes
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
    "read_pool",
    "rename_classes",
]

# Reading the text of a run needs the rules for names only.
__getattr__ = on_first_use(
    __name__,
    {
        "io": ["is_saved_pool", "load_pool", "save_pool"],
        "names": ["read_class_names", "read_synonyms"],
        "pool": [
            "Concatenate",
            "Prompt",
            "PromptPool",
            "build_pool",
            "deduplicate",
            "from_sources",
            "union",
        ],
        "readers": [
            "KINDS",
            "Reader",
            "Source",
            "emoji_descriptions",
            "kinds",
            "read_descriptions",
            "read_source",
            "read_sources",
        ],
        "sources": ["read_pool", "rename_classes"],
        "templates": ["PLAIN_TEMPLATE", "TEMPLATES", "clip_templates", "fill"],
    },
)

"""Prompt pools: class names, templates and sentences about classes."""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.pool.io import save_pool
    from promptboost.pool.pool import PromptPool, build_pool
    from promptboost.pool.sources import read_pool
    from promptboost.pool.templates import TEMPLATES, fill

__all__ = ["PromptPool", "TEMPLATES", "build_pool", "fill", "read_pool", "save_pool"]

# Reading the text of a run needs the rules for names only.
__getattr__ = on_first_use(
    __name__,
    {
        "io": ["save_pool"],
        "pool": ["PromptPool", "build_pool"],
        "sources": ["read_pool"],
        "templates": ["TEMPLATES", "fill"],
    },
)

"""Answering: runs over HTTP, with batches, limits, metrics and versions.

It needs the extra ``serve``: ``pip install 'promptboost[serve]'``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptboost.serve.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from promptboost.serve import app

        return getattr(app, name)
    raise AttributeError(f"module 'promptboost.serve' has no attribute {name!r}")

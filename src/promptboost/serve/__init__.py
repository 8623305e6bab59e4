"""Answering: runs over HTTP, with batches, limits, metrics and versions.

It needs the extra ``serve``: ``pip install 'promptboost[serve]'``.
"""

from promptboost.serve.app import create_app

__all__ = ["create_app"]

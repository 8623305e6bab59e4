"""Text towers that can be differentiated: gradients reach the token embeddings of a text."""

from promptboost.encoders.towers.base import DifferentiableText, encode_with, open_tower

__all__ = ["DifferentiableText", "encode_with", "open_tower"]

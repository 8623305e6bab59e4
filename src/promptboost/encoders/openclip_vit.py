"""Which encoders have towers that take deep prompts: a ViT and a causal text tower of open_clip."""

from typing import Any

from promptboost.encoders.base import Encoder
from promptboost.encoders.openclip import OpenClipEncoder
from promptboost.encoders.openclip_text import TextTower
from promptboost.errors import EncoderError

__all__ = ["vit_clip"]


def vit_clip(encoder: Encoder) -> OpenClipEncoder:
    """Give the open_clip encoder that an encoder is, or that a store stands before.

    Raises
    ------
    EncoderError
        If there is none, or its towers are not a ViT and a causal text tower.

    Examples
    --------
    >>> from promptboost.testing import FakeEncoder
    >>> vit_clip(FakeEncoder(dim=8))
    Traceback (most recent call last):
    promptboost.errors.EncoderError: deep prompts need a ViT of open_clip, such as ViT-B-32/openai; \
fake:8-0 has no such tower
    """
    inner: object = getattr(encoder, "encoder", encoder)
    obstacle = "has no such tower"
    if isinstance(inner, OpenClipEncoder):
        obstacle = _obstacle(inner.model)
        if not obstacle:
            return inner
    raise EncoderError(
        f"deep prompts need a ViT of open_clip, such as ViT-B-32/openai; {encoder.id} {obstacle}"
    )


def _obstacle(model: Any) -> str:
    """Say what is in the way of prompts in a model's towers; empty if nothing is."""
    from open_clip.transformer import VisionTransformer

    visual = model.visual
    if not isinstance(visual, VisionTransformer):
        return f"has a {type(visual).__name__} for its image tower"
    if visual.attn_pool is not None or visual.pool_type != "tok":
        return "has a ViT that does not read its row at a class token"
    if not TextTower(model).is_causal:
        return "has a text tower that is not causal or not open_clip's own"
    return ""

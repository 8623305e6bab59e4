"""Deep prompts: learned tokens in the first layers of both towers of a ViT CLIP."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from promptboost.encoders.base import Encoder, without_store
from promptboost.encoders.openclip.openclip import OpenClipEncoder
from promptboost.encoders.openclip.tower import TextTower, projected
from promptboost.errors import EncoderError

if TYPE_CHECKING:
    from torch import Tensor


def vit_clip(encoder: Encoder) -> OpenClipEncoder:
    """Return the open_clip encoder, without its store."""
    inner = without_store(encoder)
    obstacle = "has no such tower"
    if isinstance(inner, OpenClipEncoder):
        obstacle = _obstacle(inner.model)
        if not obstacle:
            return inner
    raise EncoderError(
        f"deep prompts need a ViT of open_clip, such as ViT-B-32/openai; {encoder.id} {obstacle}"
    )


def _obstacle(model: Any) -> str:
    """Return what is in the way of prompts in a model's towers; empty if nothing is."""
    from open_clip.transformer import VisionTransformer

    visual = model.visual
    if not isinstance(visual, VisionTransformer):
        return f"has a {type(visual).__name__} for its image tower"
    if visual.attn_pool is not None or visual.pool_type != "tok":
        return "has a ViT that does not read its row at a class token"
    if not TextTower(model).is_causal:
        return "has a text tower that is not causal or not open_clip's own"
    return ""


# Initial text prompts of the first layer.
_FIRST_WORDS = "a photo of a"
_SPREAD = 0.02


@dataclass(frozen=True)
class DeepPrompts:
    """The learned tokens of both towers' first layers, each of shape (layers, tokens, width)."""

    text: "Tensor"
    vision: "Tensor"


@dataclass(frozen=True)
class ClassTokens:
    """Class names as the text tower gets them, with no prompts in them yet."""

    embedded: "Tensor"  # start token, name, full stop, end token and padding, (K, L, width)
    ends: "Tensor"  # where the end tokens are, (K,)


class PromptedTowers:
    """The towers of a CLIP model, run with prompts among their tokens; the model is not changed."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._visual = model.visual
        self._text = getattr(model, "text", model)
        self._ends = TextTower(model)
        self._tokenizer = tokenizer
        weight = self._visual.conv1.weight
        self._device, self._dtype = weight.device, weight.dtype

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that the image tower takes."""
        height, width = self._visual.image_size
        return height, width

    @property
    def widths(self) -> tuple[int, int]:
        """How long the tokens of the text tower and of the image tower are."""
        return self._text.transformer.width, self._visual.transformer.width

    def draw_prompts(
        self, rng: np.random.Generator, *, depth: int, text_tokens: int, vision_tokens: int
    ) -> DeepPrompts:
        """Draw initial prompts: small random ones, but words in the first text layer."""
        text = self._draw(rng, self._text.transformer, depth, text_tokens)
        words = self._embed(self._tokenizer([_FIRST_WORDS]))[0, 1:]
        count = min(text_tokens, len(_FIRST_WORDS.split()))
        text[0, :count] = words[:count]
        return DeepPrompts(text, self._draw(rng, self._visual.transformer, depth, vision_tokens))

    def class_tokens(self, class_names: Sequence[str], prompts: int) -> ClassTokens:
        """Tokenize class names, leaving room for prompts."""
        tokens = self._tokenizer([f"{name.replace('_', ' ')}." for name in class_names])
        lengths = self._ends.lengths(tokens)
        longest = int(lengths.argmax())
        room = tokens.shape[1] - prompts
        if lengths[longest] > room:
            raise EncoderError(
                f"the class name {class_names[longest][:60]!r} takes {lengths[longest]} tokens, and "
                f"with {prompts} prompts there is room for {room}; give it a shorter name"
            )
        import torch

        tokens = tokens[:, : int(lengths[longest])]
        ends = torch.from_numpy(lengths - 1).to(self._device)
        return ClassTokens(self._embed(tokens), ends)

    def text_rows(self, classes: ClassTokens, prompts: "Tensor") -> "Tensor":
        """Map class names with prompts before them to unit rows, (K, D)."""
        import torch

        tower, count = self._text, prompts.shape[1]
        start, names = classes.embedded[:, :1], classes.embedded[:, 1:]
        x = torch.cat([start, _repeated(prompts[0], names), names], dim=1)
        length = x.shape[1]
        x = x + tower.positional_embedding[:length].to(x.dtype)
        mask = tower.attn_mask[:length, :length]
        for layer, block in enumerate(tower.transformer.resblocks):
            if 0 < layer < len(prompts):
                x = torch.cat([x[:, :1], _repeated(prompts[layer], x), x[:, 1 + count :]], dim=1)
            x = block(x, attn_mask=mask)
        ends = classes.ends + count
        x = tower.ln_final(x[torch.arange(len(x), device=x.device), ends])
        return torch.nn.functional.normalize(projected(x, tower.text_projection), dim=-1)

    def image_rows(self, images: "Tensor", prompts: "Tensor") -> "Tensor":
        """Map preprocessed images, with prompts after their patches, to unit rows, (n, D)."""
        import torch

        tower, count = self._visual, prompts.shape[1]
        patches = tower.conv1(images.to(self._device, self._dtype)).flatten(2).transpose(1, 2)
        x = torch.cat([_repeated(tower.class_embedding[None], patches), patches], dim=1)
        x = x + tower.positional_embedding.to(x.dtype)
        # Prompts have no position, but go through the first normalization as all tokens do.
        x = tower.ln_pre(torch.cat([x, _repeated(prompts[0], x)], dim=1))
        real = x.shape[1] - count
        for layer, block in enumerate(tower.transformer.resblocks):
            if 0 < layer < len(prompts):
                x = torch.cat([x[:, :real], _repeated(prompts[layer], x)], dim=1)
            x = block(x)
        x = tower.ln_post(x[:, 0])
        return torch.nn.functional.normalize(projected(x, tower.proj), dim=-1)

    def frozen_image_rows(self, images: "Tensor") -> "Tensor":
        """Map preprocessed images to unit rows as the model does without any prompts."""
        import torch

        with torch.no_grad():
            rows: Tensor = self._visual(images.to(self._device, self._dtype))
            return torch.nn.functional.normalize(rows, dim=-1)

    def _embed(self, tokens: "Tensor") -> "Tensor":
        import torch

        with torch.no_grad():
            rows: Tensor = self._text.token_embedding(tokens.to(self._device))
            return rows.to(self._dtype)

    def _draw(
        self, rng: np.random.Generator, transformer: Any, depth: int, tokens: int
    ) -> "Tensor":
        import torch

        layers = min(depth, len(transformer.resblocks))
        values = rng.normal(0.0, _SPREAD, (layers, tokens, transformer.width))
        # Prompts are learned in single precision at least, whatever the model runs in.
        kind = torch.promote_types(self._dtype, torch.float32)
        return torch.from_numpy(values).to(self._device, kind)


def _repeated(tokens: "Tensor", batch: "Tensor") -> "Tensor":
    """Repeat tokens for each item of a batch, in its number type."""
    return tokens.to(batch.dtype).expand(len(batch), -1, -1)

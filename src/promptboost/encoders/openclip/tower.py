"""The text towers of open_clip models, also for gradients."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import EncoderError

if TYPE_CHECKING:
    import torch


def projected(states: "torch.Tensor", projection: Any) -> "torch.Tensor":
    """Map states into the joint space by a matrix, a layer or nothing."""
    if projection is None:
        return states
    rows: torch.Tensor = projection(states) if callable(projection) else states @ projection
    return rows


class TextTower:
    """Runs a model's text tower on token matrices narrower than its context.

    In a causal tower nothing after the end token can reach it, so the first positions and the first rows
    and columns of the mask suffice. `is_causal` is False for towers that read the row at the last position
    (SigLIP), at a class token after the padding (CoCa), or look both ways (Hugging Face towers).
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        # CLIP models hold the parts of their text tower themselves, others in `text`.
        self._inside = "text." if hasattr(model, "text") else ""
        tower = getattr(model, "text", model)
        self.pool: str = getattr(tower, "pool_type", getattr(model, "text_pool_type", ""))
        self._end: int = getattr(tower, "eos_id", getattr(model, "text_eos_id", -1))
        self.is_causal: bool = (
            getattr(tower, "attn_mask", None) is not None
            and getattr(tower, "cls_emb", None) is None
            and self.pool in ("argmax", "eos")
        )

    def lengths(self, tokens: "torch.Tensor") -> NDArray[np.int64]:
        """Count the tokens of each text up to the one its row is read at."""
        is_end = tokens == self._end if self.pool == "eos" else tokens
        ends: NDArray[np.int64] = is_end.int().argmax(dim=-1).numpy() + 1
        return ends

    def __call__(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Map tokens, ``(n, length)``, to rows of the joint space."""
        length = tokens.shape[1]
        tower = getattr(self._model, "text", self._model)
        if not self.is_causal or length == tower.attn_mask.shape[0]:
            rows: torch.Tensor = self._model.encode_text(tokens, normalize=True)
            return rows
        from torch.func import functional_call

        first = {
            f"{self._inside}positional_embedding": tower.positional_embedding[:length],
            f"{self._inside}attn_mask": tower.attn_mask[:length, :length],
        }
        outputs = functional_call(self._model, first, kwargs={"text": tokens})
        # Image features, text features and scale: a dict or a tuple, depending on the model.
        named = isinstance(outputs, dict)
        trimmed: torch.Tensor = outputs["text_features"] if named else outputs[1]
        return trimmed


# Texts in one sequence of a causal tower: more share a beginning, but attention grows squared.
_TOGETHER = 64


class OpenClipTower:
    """One of open_clip's own text transformers.

    In a causal tower, texts that begin alike follow one copy of the beginning, in one sequence, under a
    mask that keeps them apart. Other towers (SigLIP's) get every text, padded to the context.
    """

    def __init__(self, model: Any, tokenizer: Any, encoder_id: str) -> None:
        tower = getattr(model, "text", model)
        reader = TextTower(model)
        self._pool, self._is_causal = reader.pool or "none", reader.is_causal
        self._check_make(tower, encoder_id)
        self._tower = tower
        self._tokenizer = tokenizer
        self._has_own_tokenizer = hasattr(tokenizer, "encode")
        self._inner = tokenizer if self._has_own_tokenizer else tokenizer.tokenizer
        self.start, self.end = self._around()
        self._padding = int(tokenizer(["a"])[0, -1])
        self.context_length = int(tokenizer.context_length)

    def _check_make(self, tower: Any, encoder_id: str) -> None:
        needed = ("token_embedding", "positional_embedding", "transformer", "ln_final", "attn_mask")
        strange = (
            any(not hasattr(tower, name) for name in needed)  # a Hugging Face model
            or getattr(tower, "cls_emb", None) is not None  # CoCa: a token after the padding
            or getattr(tower, "use_pad_mask", False)
            or self._pool == "none"
        )
        if strange:
            raise EncoderError(
                f"gradients cannot reach the texts of {encoder_id}: its text tower is not one of "
                "open_clip's plain transformers. Use a CLIP or SigLIP model such as "
                "ViT-B-32/openai, or conse:lite0"
            )

    @property
    def vocabulary(self) -> "torch.Tensor":
        """The token embeddings, without positions."""
        weight: torch.Tensor = self._tower.token_embedding.weight
        return weight.detach()

    @cached_property
    def allowed(self) -> "torch.Tensor":
        """The tokens that stand for whole characters and are not special."""
        import torch

        inner, special = self._inner, set(self._inner.all_special_ids)
        words = inner.vocab_size if self._has_own_tokenizer else len(inner)
        count = min(words, len(self.vocabulary))
        tokens = [token for token in range(count) if token not in special]
        texts = [token for token in tokens if _is_text(self.decode([token]))]
        return torch.tensor(texts, device=self.vocabulary.device)

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without start and end."""
        if self._has_own_tokenizer:
            return list(self._tokenizer.encode(text))
        return self._other_tokens(text, special=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens."""
        return str(self._inner.decode(list(tokens))).strip()

    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens before and after those of every text."""
        if self._has_own_tokenizer:
            return (self._tokenizer.sot_token_id,), (self._tokenizer.eot_token_id,)
        bare, whole = (self._other_tokens("a", special=special) for special in (False, True))
        starts = range(len(whole) - len(bare) + 1)
        first = next(i for i in starts if whole[i : i + len(bare)] == bare)
        return tuple(whole[:first]), tuple(whole[first + len(bare) :])

    def _other_tokens(self, text: str, *, special: bool) -> list[int]:
        clean = self._tokenizer.clean_fn(text)
        ids = self._inner(clean, add_special_tokens=special, verbose=False).input_ids
        return list(ids)

    def encode(
        self, beginning: "torch.Tensor", endings: "torch.Tensor", lengths: "torch.Tensor"
    ) -> "torch.Tensor":
        """Run the tower and read the rows where the model reads them."""
        import torch

        pooled = (self._together if self._is_causal else self._apart)(beginning, endings, lengths)
        pooled = self._tower.ln_final(pooled)
        pooled = projected(pooled, self._tower.text_projection)
        return torch.nn.functional.normalize(pooled.float(), dim=-1)

    def _together(
        self, beginning: "torch.Tensor", endings: "torch.Tensor", lengths: "torch.Tensor"
    ) -> "torch.Tensor":
        """Return the states of the end tokens, encoding many texts with one beginning."""
        import torch

        n, width = endings.shape[:2]
        first, group = len(beginning), min(_TOGETHER, n)
        missing = -n % group
        filled = torch.nn.functional.pad(endings, (0, 0, 0, 0, 0, missing))
        rows = filled.reshape(-1, group * width, endings.shape[2])
        tokens = torch.cat([beginning.expand(len(rows), -1, -1), rows], dim=1)
        places = torch.arange(group * width, device=tokens.device)
        positions = torch.cat([torch.arange(first, device=tokens.device), first + places % width])
        states = self._states(tokens, positions, _apart_mask(first, group, width, tokens))
        states = states[:, first:].reshape(-1, width, states.shape[2])
        return states[torch.arange(n, device=states.device), lengths - 1]

    def _apart(
        self, beginning: "torch.Tensor", endings: "torch.Tensor", lengths: "torch.Tensor"
    ) -> "torch.Tensor":
        """Return the pooled states of texts that are padded as the tokenizer pads them."""
        import torch

        n = len(endings)
        ends = lengths + len(beginning)
        tokens = torch.cat([beginning.expand(n, -1, -1), endings], dim=1)
        padding = self.context_length - tokens.shape[1]
        tokens = torch.nn.functional.pad(tokens, (0, 0, 0, padding))
        positions = torch.arange(self.context_length, device=tokens.device)
        present = positions < ends[:, None]
        tokens = torch.where(present[:, :, None], tokens, self.vocabulary[self._padding])
        states = self._states(tokens, positions, self._tower.attn_mask)
        if self._pool in ("first", "last"):
            return states[:, 0 if self._pool == "first" else -1]
        return states[torch.arange(n, device=states.device), ends - 1]

    def _states(
        self, tokens: "torch.Tensor", positions: "torch.Tensor", mask: "torch.Tensor | None"
    ) -> "torch.Tensor":
        kind = self._tower.transformer.get_cast_dtype()
        placed = tokens.to(kind) + self._tower.positional_embedding[positions].to(kind)
        states: torch.Tensor = self._tower.transformer(placed, attn_mask=mask)
        return states


def _is_text(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and "\ufffd" not in text


def _apart_mask(first: int, group: int, width: int, tokens: "torch.Tensor") -> "torch.Tensor":
    """Let a token see what is before it in the beginning and in its own text, as summands."""
    import torch

    places = torch.arange(first + group * width, device=tokens.device)
    # The beginning belongs to all texts: it has the number -1.
    text = torch.div(places - first, width, rounding_mode="floor").clamp(min=-1)
    earlier = places[None, :] <= places[:, None]
    same = (text[None, :] == text[:, None]) | (text[None, :] == -1)
    hidden = torch.zeros(len(places), len(places), device=tokens.device)
    return hidden.masked_fill(~(earlier & same), float("-inf"))

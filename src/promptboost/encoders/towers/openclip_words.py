"""The two kinds of tokenizers that open_clip has, seen alike."""

from collections.abc import Sequence
from typing import Any

__all__ = ["OpenClipWords"]


class OpenClipWords:
    """Texts to tokens and back, with the tokens around every text told apart from its own.

    Parameters
    ----------
    tokenizer : callable
        open_clip's own tokenizer, or its wrapper of one from Hugging Face.

    Attributes
    ----------
    start, end : tuple of int
        Tokens before and after every text.
    padding : int
        The token that fills the context.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._is_own = hasattr(tokenizer, "encode")
        self.start, self.end = self._around()
        self.padding = int(tokenizer(["a"])[0, -1])

    def tokenize(self, text: str) -> list[int]:
        """Give the tokens of a text, without start and end."""
        if self._is_own:
            return list(self._tokenizer.encode(text))
        return self._other(text, special=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Give the text that tokens stand for."""
        decode = self._tokenizer.decode if self._is_own else self._tokenizer.tokenizer.decode
        return str(decode(list(tokens))).strip()

    def writable(self, size: int) -> list[int]:
        """Give the tokens below `size` that stand for whole characters and are not special."""
        inner = self._tokenizer if self._is_own else self._tokenizer.tokenizer
        count = inner.vocab_size if self._is_own else len(inner)
        special = set(inner.all_special_ids)
        tokens = (token for token in range(min(size, count)) if token not in special)
        return [token for token in tokens if _is_text(self.decode([token]))]

    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self._is_own:
            return (self._tokenizer.sot_token_id,), (self._tokenizer.eot_token_id,)
        bare, whole = self._other("a", special=False), self._other("a", special=True)
        starts = range(len(whole) - len(bare) + 1)
        first = next(i for i in starts if whole[i : i + len(bare)] == bare)
        return tuple(whole[:first]), tuple(whole[first + len(bare) :])

    def _other(self, text: str, *, special: bool) -> list[int]:
        clean = self._tokenizer.clean_fn(text)
        ids = self._tokenizer.tokenizer(clean, add_special_tokens=special, verbose=False).input_ids
        return list(ids)


def _is_text(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and "\ufffd" not in text

"""The text tower of the fake encoder: the sum of word vectors, as a torch graph."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from promptboost.encoders.fake import FakeEncoder

__all__ = ["FakeTower"]

_START = "<start>"
# What prompts may be made of. Any other word joins the vocabulary when a text has it.
_LIST = """
a an the of in on with and photo picture drawing small large old new dark light bright pale red
green blue yellow white black round long bird fish tree flower stone water fire ice sky house road
street wood metal glass paper night day
"""
_WORDS = tuple(_LIST.split())


class FakeTower:
    """Words, each with one vector; a text is their sum, scaled to length one.

    Parameters
    ----------
    encoder : FakeEncoder
        What knows the vectors.

    Examples
    --------
    >>> from promptboost.testing import FakeEncoder
    >>> tower = FakeEncoder(dim=8).text_tower()
    >>> len(tower.tokenize("a red bird")), tower.vocabulary.shape[1]
    (3, 8)
    """

    end: tuple[int, ...] = ()

    def __init__(self, encoder: "FakeEncoder") -> None:
        self.context_length = encoder.context_length
        self._encoder = encoder
        self._words = [_START, *_WORDS]
        self._known = {word: number for number, word in enumerate(self._words)}
        self.start: tuple[int, ...] = (self._known[_START],)

    @property
    def vocabulary(self) -> "torch.Tensor":
        """One row for each word met so far."""
        import torch

        rows = np.stack([self._encoder.word_vector(word) for word in self._words])
        return torch.from_numpy(rows.astype(np.float32))

    @property
    def allowed(self) -> "torch.Tensor":
        """The words of the fixed list."""
        import torch

        return torch.arange(1, 1 + len(_WORDS))

    def tokenize(self, text: str) -> list[int]:
        """Give the numbers of words; new words get one."""
        words = self._encoder.words(text)
        for word in words:
            if word not in self._known:
                self._known[word] = len(self._words)
                self._words.append(word)
        return [self._known[word] for word in words]

    def decode(self, tokens: Sequence[int]) -> str:
        """Join words with spaces."""
        return " ".join(self._words[token] for token in tokens)

    def encode(
        self, beginning: "torch.Tensor", endings: "torch.Tensor", lengths: "torch.Tensor"
    ) -> "torch.Tensor":
        """Add up words."""
        import torch

        present = torch.arange(endings.shape[1]) < lengths[:, None]
        rows = beginning.sum(dim=0) + (endings * present[:, :, None]).sum(dim=1)
        return torch.nn.functional.normalize(rows, dim=-1)

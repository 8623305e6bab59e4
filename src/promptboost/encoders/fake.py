"""FakeEncoder: an encoder without weights, for tests and examples."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, unit_rows
from promptboost.encoders.runtime import require_modules
from promptboost.errors import EncoderError

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from promptboost.encoders.base import DifferentiableText


class FakeEncoder:
    """A deterministic encoder without weights.

    A text is the sum of one fixed pseudo-random vector per word; an image is the sum of the
    vectors of the words that name its dominant colors, so a red image is near "red".

    Parameters
    ----------
    dim : int, default=32
        Length of the rows.
    seed : int, default=0
        Seed of the word vectors.

    Examples
    --------
    >>> FakeEncoder(dim=16).encode_texts(["a red bird", "a blue fish"]).shape
    (2, 16)
    """

    context_length = 77
    causal_text = True
    logit_scale = 20.0

    def __init__(self, dim: int = 32, seed: int = 0) -> None:
        self.dim = dim
        self.seed = seed
        self.id = f"fake:{dim}-{seed}"
        self.fingerprint = hashlib.blake2b(self.id.encode(), digest_size=16).hexdigest()

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed each text as the sum of its words."""
        return self._rows([self._text(text) for text in texts])

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed each image by the colors in a 4 × 4 thumbnail of it."""
        return self._rows([self._image(image) for image in images])

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count words, plus a start and an end token."""
        return np.array([len(text.split()) + 2 for text in texts], dtype=np.int64)

    def words(self, text: str) -> list[str]:
        """Return the words of a text as they are looked up."""
        return [word.strip(".,;:!?") for word in text.lower().split()]

    def text_tower(self) -> "DifferentiableText":
        """Return the same sum of word vectors for gradients, which need torch."""
        require_modules(["torch"], "clip", f"gradients of {self.id}")
        return FakeTower(self)

    def _rows(self, rows: list[NDArray[np.float64]]) -> UnitRows:
        return unit_rows(np.reshape(rows, (-1, self.dim)))

    def word_vector(self, word: str) -> NDArray[np.float64]:
        """Return the vector of a word."""
        digest = hashlib.blake2b(f"{self.seed}/{word}".encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(self.dim)

    def _text(self, text: str) -> NDArray[np.float64]:
        # A constant direction, as in real towers, keeps an empty text from being a zero row.
        return self.word_vector("<start>") + sum(map(self.word_vector, self.words(text)), 0.0)

    def _image(self, image: "Image") -> NDArray[np.float64]:
        pixels = np.asarray(image.convert("RGB").resize((4, 4)), dtype=np.float64) / 255.0
        red, green, blue = pixels.reshape(-1, 3).mean(axis=0)
        detail = pixels.reshape(-1) - pixels.mean()
        row = self.word_vector("<start>") + red * self.word_vector("red")
        row = row + green * self.word_vector("green") + blue * self.word_vector("blue")
        texture = [detail[j] * self.word_vector(f"<pixel {j}>") for j in range(0, detail.size, 6)]
        return np.asarray(row + 0.3 * np.sum(texture, axis=0))


def load_fake(argument: str, device: str | None = None) -> FakeEncoder:
    """Return the encoder of a name such as ``fake:32-0``."""
    numbers = re.fullmatch(r"([1-9]\d{0,5})-(\d{1,18})", argument, re.ASCII)
    if numbers is None:
        raise EncoderError(
            f"'fake:{argument}' is not a fake encoder: type the dimension and the seed, as in fake:32-0"
        )
    return FakeEncoder(dim=int(numbers[1]), seed=int(numbers[2]))


# The initial vocabulary; other words are added when a text has them.
_LIST = """
a an the of in on with and photo image drawing small large old new dark light bright pale red
green blue yellow white black round long bird fish tree flower stone water fire ice sky house road
street wood metal glass paper night day
"""
_WORDS = tuple(_LIST.split())


class FakeTower:
    """Words, each with one vector; a text is their sum, scaled to length one."""

    start: tuple[int, ...] = (0,)
    end: tuple[int, ...] = ()

    def __init__(self, encoder: "FakeEncoder") -> None:
        self.context_length = encoder.context_length
        self._encoder = encoder
        self._words = ["<start>", *_WORDS]

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
        """Return the numbers of words; new words get one."""
        words = self._encoder.words(text)
        for word in words:
            if word not in self._words:
                self._words.append(word)
        return [self._words.index(word) for word in words]

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

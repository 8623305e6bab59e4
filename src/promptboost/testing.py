"""Helpers for tests: an encoder that needs no weights, and embeddings that behave like CLIP's."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, unit_rows

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.encoders.towers import DifferentiableText
    from promptboost.methods import FewShotSet

__all__ = ["FakeEncoder", "SyntheticTask", "clip_like", "colour_shots"]


class FakeEncoder:
    """A deterministic encoder without weights.

    A text is the sum of one fixed pseudo-random vector per word; a picture is the sum of the
    vectors of the words that name its dominant colours, so a red picture is near "red".

    Parameters
    ----------
    dim : int, default=32
        Length of the rows.
    seed : int, default=0
        Another seed is another model: the same words, other vectors.

    Examples
    --------
    >>> encoder = FakeEncoder(dim=16)
    >>> rows = encoder.encode_texts(["a red bird", "a red bird", "a blue fish"])
    >>> rows.shape
    (3, 16)
    >>> bool((rows[0] == rows[1]).all())
    True
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
        """Embed each picture by the colours in a 4 × 4 thumbnail of it."""
        return self._rows([self._picture(image) for image in images])

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count words, plus a start and an end token."""
        return np.array([len(text.split()) + 2 for text in texts], dtype=np.int64)

    def words(self, text: str) -> list[str]:
        """Give the words of a text as they are looked up."""
        return [word.strip(".,;:!?") for word in text.lower().split()]

    def text_tower(self) -> "DifferentiableText":
        """Give the same sum of word vectors for gradients."""
        from promptboost.encoders.towers.fake import FakeTower

        return FakeTower(self)

    def _rows(self, rows: list[NDArray[np.float64]]) -> UnitRows:
        if not rows:
            return np.zeros((0, self.dim), dtype=np.float32)
        return unit_rows(np.stack(rows))

    def word_vector(self, word: str) -> NDArray[np.float64]:
        """Give the vector of a word."""
        digest = hashlib.blake2b(f"{self.seed}/{word}".encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(self.dim)

    def _text(self, text: str) -> NDArray[np.float64]:
        # A constant direction, as in real towers, keeps an empty text from being a zero row.
        return self.word_vector("<start>") + sum(map(self.word_vector, self.words(text)), 0.0)

    def _picture(self, image: "Image") -> NDArray[np.float64]:
        pixels = np.asarray(image.convert("RGB").resize((4, 4)), dtype=np.float64) / 255.0
        red, green, blue = pixels.reshape(-1, 3).mean(axis=0)
        detail = pixels.reshape(-1) - pixels.mean()
        row = self.word_vector("<start>") + red * self.word_vector("red")
        row = row + green * self.word_vector("green") + blue * self.word_vector("blue")
        texture = [detail[j] * self.word_vector(f"<pixel {j}>") for j in range(0, detail.size, 6)]
        return np.asarray(row + 0.3 * np.sum(texture, axis=0))


@dataclass(frozen=True)
class SyntheticTask:
    """Embeddings of a made-up few-shot task; all rows have length one."""

    pictures: NDArray[np.float32]
    labels: NDArray[np.int64]
    views: NDArray[np.float32]
    templates: NDArray[np.float32]
    prompts: list[NDArray[np.float32]]


def clip_like(
    n_classes: int,
    shots: int,
    *,
    views: int = 4,
    prompts: int = 100,
    templates: int = 8,
    dim: int = 64,
    confusion: float = 2.0,
    seed: int = 0,
) -> SyntheticTask:
    """Make embeddings that behave like a contrastive model's.

    Pictures and texts sit around two distant points (the modality gap). What tells them apart lies
    in a few shared attribute directions: classes come in families, a name describes its class with
    an error of its own, each prompt describes it with another, and pictures of a class differ.

    Parameters
    ----------
    n_classes, shots, views, prompts, templates, dim : int
        Sizes: K, pictures a class, V, prompts a class, number of templates, D.
    confusion : float, default=2.0
        How much pictures of one class differ; 2 leaves templates wrong on about a fifth of them.
    seed : int, default=0
        Same seed, same task.

    Examples
    --------
    >>> task = clip_like(n_classes=3, shots=2, views=4, prompts=10)
    >>> task.pictures.shape, task.views.shape, task.templates.shape
    ((6, 64), (6, 4, 64), (3, 8, 64))
    """
    rng = np.random.default_rng(seed)
    rank = min(96, dim // 2)
    directions = np.linalg.qr(rng.standard_normal((dim, rank)))[0].T.astype(np.float32)
    spread = (np.linspace(1.5, 0.4, rank) / np.sqrt(rank)).astype(np.float32)
    text_side, picture_side = unit_rows(rng.standard_normal((2, dim)))

    def attributes(*shape: int) -> NDArray[np.float32]:
        return np.asarray(rng.standard_normal((*shape, rank), dtype=np.float32) * spread)

    def place(z: NDArray[np.float32], side: UnitRows, noise: float) -> UnitRows:
        flat = z.reshape(-1, rank)
        blur = unit_rows(rng.standard_normal((len(flat), dim), dtype=np.float32))
        rows = unit_rows(1.2 * side + flat @ directions + noise * blur)
        return rows.reshape(*z.shape[:-1], dim)

    family = np.arange(n_classes) % max(2, n_classes // 6)
    centre = attributes(max(2, n_classes // 6))[family] + 0.75 * attributes(n_classes)
    name = centre + 0.6 * attributes(n_classes)
    filled = name[:, None] + 0.4 * attributes(templates) + 0.15 * attributes(n_classes, templates)
    labels = np.repeat(np.arange(n_classes), shots)
    picture = centre[labels] + confusion * attributes(len(labels))
    return SyntheticTask(
        pictures=place(picture, picture_side, 0.5),
        labels=labels,
        views=place(
            picture[:, None] + 0.4 * confusion * attributes(len(labels), views), picture_side, 0.5
        ),
        templates=place(filled, text_side, 0.2),
        prompts=[
            place(0.8 * centre[k] + 0.7 * attributes(prompts), text_side, 0.3)
            for k in range(n_classes)
        ],
    )


def colour_shots(red: str, blue: str) -> "tuple[FewShotSet, FakeEncoder]":
    """Make a few-shot set of four pictures, and the encoder that sees them.

    Parameters
    ----------
    red, blue : str
        Names of the two classes. Pictures of the first are red and dark red, those of the second
        blue and light blue.

    Examples
    --------
    >>> shots, encoder = colour_shots("fire", "ice")
    >>> shots.class_names, shots.labels.tolist(), shots.pictures.rows(encoder).shape
    (('fire', 'ice'), [0, 0, 1, 1], (4, 32))
    """
    from promptboost.methods import FewShotSet, RowPictures

    encoder = FakeEncoder()
    rows = encoder.encode_texts(["red", "dark red", "blue", "light blue"])[:, None]
    pictures = RowPictures({encoder.id: rows})
    return FewShotSet(pictures, np.array([0, 0, 1, 1]), (red, blue)), encoder

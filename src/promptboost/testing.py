"""Helpers for tests: what an encoder lacks, and embeddings that behave like CLIP's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import ENCODER_PARTS, UnitRows, unit_rows

__all__ = ["SyntheticTask", "check_encoder", "clip_like"]


@dataclass(frozen=True)
class SyntheticTask:
    """Embeddings of a made-up few-shot task; all rows have length one."""

    images: NDArray[np.float32]
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

    Images and texts sit around two distant points (the modality gap). What tells them apart lies
    in a few shared attribute directions: classes come in families, a name describes its class with
    an error of its own, each prompt describes it with another, and images of a class differ.

    Parameters
    ----------
    n_classes, shots, views, prompts, templates, dim : int
        Sizes: K, images a class, V, prompts a class, number of templates, D.
    confusion : float, default=2.0
        How much images of one class differ; 2 leaves templates wrong on about a fifth of them.
    seed : int, default=0
        Same seed, same task.

    Examples
    --------
    >>> task = clip_like(n_classes=3, shots=2, views=4, prompts=10)
    >>> task.images.shape, task.views.shape, task.templates.shape
    ((6, 64), (6, 4, 64), (3, 8, 64))
    """
    rng = np.random.default_rng(seed)
    rank = min(96, dim // 2)
    directions = np.linalg.qr(rng.standard_normal((dim, rank)))[0].T.astype(np.float32)
    spread = (np.linspace(1.5, 0.4, rank) / np.sqrt(rank)).astype(np.float32)
    text_side, image_side = unit_rows(rng.standard_normal((2, dim)))

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
    image = centre[labels] + confusion * attributes(len(labels))
    return SyntheticTask(
        images=place(image, image_side, 0.5),
        labels=labels,
        views=place(
            image[:, None] + 0.4 * confusion * attributes(len(labels), views), image_side, 0.5
        ),
        templates=place(filled, text_side, 0.2),
        prompts=[
            place(0.8 * centre[k] + 0.7 * attributes(prompts), text_side, 0.3)
            for k in range(n_classes)
        ],
    )


_TEXTS = ("a photo of a cat.", "an old lighthouse by the sea", "", "a cat, " * 60)
_KINDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "fingerprint": (str,),
    "dim": (int,),
    "context_length": (int,),
    "causal_text": (bool,),
    "logit_scale": (float, int),
}


def check_encoder(encoder: object) -> list[str]:
    """Check that an object is an encoder promptboost can work with.

    Parameters
    ----------
    encoder : object
        What claims to be an :class:`~promptboost.encoders.Encoder`.

    Returns
    -------
    list of str
        What is wrong or missing, and what to do about it; empty if all is well.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> check_encoder(FakeEncoder())
    []
    >>> check_encoder("ViT-B-32")[0]
    'there is no attribute id: the name a user types to load it'
    """
    problems = [
        f"there is no attribute {part}: {_MEANING[part]}"
        for part in ENCODER_PARTS
        if not hasattr(encoder, part)
    ]
    for part, kinds in _KINDS.items():
        value = getattr(encoder, part, None)
        if hasattr(encoder, part) and not isinstance(value, kinds):
            problems.append(f"{part} is {value!r}: it must be of type {kinds[0].__name__}")
        elif part in ("dim", "context_length", "logit_scale", "id", "fingerprint") and (
            value == "" or (isinstance(value, int | float) and value <= 0)
        ):
            problems.append(f"{part} is {value!r}: {_MEANING[part]}")
    if problems:
        return problems
    return [*_check_texts(encoder), *_check_images(encoder), *_check_tokens(encoder)]


_MEANING = {
    "id": "the name a user types to load it",
    "fingerprint": "a text that changes whenever an embedding could change",
    "dim": "the length of an embedding, above zero",
    "context_length": "how many tokens of a text it reads, above zero",
    "causal_text": "whether padding after a text cannot matter; False if in doubt",
    "logit_scale": "the factor on cosines before a softmax, above zero; CLIP has 100",
    "encode_texts": "a method that maps a list of texts to an array of shape (n, dim)",
    "encode_images": "a method that maps PIL images to an array of shape (n, dim)",
    "count_tokens": "a method that maps a list of texts to an array of n integers",
}


def _check_texts(encoder: Any) -> list[str]:
    return _check_rows("encode_texts", encoder.encode_texts, list(_TEXTS), encoder.dim)


def _check_images(encoder: Any) -> list[str]:
    from PIL import Image

    images = [Image.new("RGB", size, colour) for size, colour in _IMAGES]
    problems = _check_rows("encode_images", encoder.encode_images, images, encoder.dim)
    if not problems:
        try:
            encoder.encode_images(iter(images))
        except Exception as error:
            problems.append(f"encode_images fails on an iterator of images: {_told(error)}")
    return problems


_IMAGES = (((64, 48), "red"), ((48, 64), "blue"), ((300, 200), "white"))


def _check_rows(
    name: str, encode: Callable[[list[Any]], Any], items: list[Any], dim: int
) -> list[str]:
    try:
        many, again, one = encode(items), encode(items), encode(items[:1])
        none = encode([])
    except Exception as error:
        return [f"{name} fails on {len(items)}, one or no items: {_told(error)}"]
    expected = (len(items), dim)
    if not isinstance(many, np.ndarray) or many.shape != expected:
        shape = getattr(many, "shape", type(many).__name__)
        return [f"{name} returned {shape} for {len(items)} items: an array of shape {expected}"]
    problems = []
    if many.dtype != np.float32:
        problems.append(f"{name} returned {many.dtype}: make it float32")
    if getattr(none, "shape", None) != (0, dim):
        problems.append(f"{name} of an empty list must be an array of shape (0, {dim})")
    if not np.isfinite(many).all():
        return [*problems, f"{name} returned numbers that are not finite"]
    if not np.allclose(np.linalg.norm(many, axis=1), 1.0, atol=1e-3):
        problems.append(f"{name} returned rows whose length is not one: see encoders.unit_rows")
    if not np.array_equal(many, again):
        problems.append(f"{name} returned other numbers the second time: switch off what is random")
    if not np.allclose(many[:1], one, atol=1e-3):
        problems.append(f"{name} depends on what else is in the list: mask padding, fix batch norm")
    if np.allclose(many[0], many[1], atol=1e-6):
        problems.append(f"{name} returned the same row for different items")
    return problems


def _check_tokens(encoder: Any) -> list[str]:
    try:
        counts = np.asarray(encoder.count_tokens(list(_TEXTS)))
    except Exception as error:
        return [f"count_tokens fails: {_told(error)}"]
    if counts.shape != (len(_TEXTS),) or counts.dtype.kind not in "iu":
        return [f"count_tokens must return {len(_TEXTS)} integers for {len(_TEXTS)} texts"]
    if not counts[3] > counts[0]:
        return ["count_tokens must count all tokens of a text, also those that are cut off"]
    return []


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

"""For tests: made-up tasks, and checks that tell the author of a plugin what it lacks."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import ENCODER_PARTS, Encoder, UnitRows, unit_rows
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import EncoderError, PromptBoostError, a_type
from promptboost.pool import PromptPool, build_pool

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.methods.base import FewShotSet, FittedMethod, Method

_T = TypeVar("_T")


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
    n_classes, shots, views, prompts, templates, dim, seed : int
        Shots are images of each class, views crops of each image, prompts those of each class.
    confusion : float
        How much images of one class differ; 2 leaves templates wrong on about a fifth of them.

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
    center = attributes(max(2, n_classes // 6))[family] + 0.75 * attributes(n_classes)
    name = center + 0.6 * attributes(n_classes)
    filled = name[:, None] + 0.4 * attributes(templates) + 0.15 * attributes(n_classes, templates)
    labels = np.repeat(np.arange(n_classes), shots)
    image = center[labels] + confusion * attributes(len(labels))
    return SyntheticTask(
        images=place(image, image_side, 0.5),
        labels=labels,
        views=place(
            image[:, None] + 0.4 * confusion * attributes(len(labels), views), image_side, 0.5
        ),
        templates=place(filled, text_side, 0.2),
        prompts=[place(0.8 * c + 0.7 * attributes(prompts), text_side, 0.3) for c in center],
    )


class _Colors:
    """Images of one color each, which any encoder can embed; knows whether it was asked."""

    def __init__(self, colors: Sequence[str]) -> None:
        self.colors = colors
        self.asked = False

    def __len__(self) -> int:
        return len(self.colors)

    def rows(self, encoder: Encoder) -> UnitRows:
        return self.views(encoder)[:, 0]

    def views(self, encoder: Encoder) -> UnitRows:
        images = list(self.images())
        crops = [image.crop((0, 0, 16, 16)) for image in images]
        rows = encoder.encode_images([*images, *crops])
        return np.ascontiguousarray(rows.reshape(2, len(images), encoder.dim).transpose(1, 0, 2))

    def images(self) -> Iterator[Image]:
        from PIL import Image

        for color in self.colors:
            self.asked = True
            yield Image.new("RGB", (32, 32), color)


def _few(*colors: str) -> FewShotSet:
    from promptboost.methods.base import FewShotSet

    labels = np.array([int("blue" in color) for color in colors], dtype=np.int64)
    return FewShotSet(_Colors(colors), labels, ("fire", "ice"), "a photo of {}.")


_FOUR = ("red", "darkred", "blue", "lightblue")
_IMAGES = _Colors(_FOUR)
_WORDS = {
    "CuPL": {"fire": ["fire is red", "fire is hot"], "ice": ["ice is blue", "ice is cold"]},
    "DCLIP": {"fire": ["a red color"], "ice": ["a blue color"]},
}


def check_method(
    method: Method,
    *,
    encoder: Encoder | None = None,
    other: Encoder | None = None,
    pool: PromptPool | None = None,
) -> list[str]:
    """Return what a method lacks to be used like those that are built in: one sentence a problem.

    It is fitted on four images of two classes, ``fire`` and ``ice``: its declarations, that it checks
    before it works, shapes, repeatability, saving and loading, and the transfer it declares.

    Parameters
    ----------
    method : Method
        With settings that keep a fit short.
    encoder, other : Encoder, optional
        To learn with, and to transfer to; by default two that need no weights.
    pool : PromptPool, optional
        Words about the classes ``fire`` and ``ice``; by default templates and a few sentences of the
        sources ``CuPL`` and ``DCLIP``.

    Examples
    --------
    >>> from promptboost.methods import make_method
    >>> check_method(make_method("zero-shot"))
    []
    >>> check_method(make_method("cupl?sources=mine"))[0]  # doctest: +ELLIPSIS
    "check() raises PoolError: ..."
    """
    check = _MethodCheck(
        method,
        encoder=FakeEncoder() if encoder is None else encoder,
        other=FakeEncoder(seed=1) if other is None else other,
        pool=build_pool(["fire", "ice"], descriptions=_WORDS) if pool is None else pool,
    )
    check.run()
    return check.problems


@dataclass
class _MethodCheck:
    """A method that is being checked, and its problems so far."""

    method: Method
    encoder: Encoder
    other: Encoder
    pool: PromptPool
    problems: list[str] = dataclasses.field(default_factory=list)

    def run(self) -> None:
        self.check_declarations()
        if self.problems:  # everything else builds on them
            return
        self.check_spelling()
        if not self.check_before_work():
            return
        fitted = self.attempt("fit()", lambda: self.fit(*_FOUR))
        if fitted is not None and self.check_answers(fitted):
            self.check_repeats(fitted)
            self.check_archive(fitted)
            self.check_transfer(fitted)

    def expect(self, right: bool, problem: str) -> None:
        if not right:
            self.problems.append(problem)

    def attempt(self, what: str, work: Callable[[], _T]) -> _T | None:
        try:
            return work()
        except Exception as error:  # whatever is wrong is a finding, not the end
            self.problems.append(f"{what} raises {_described(error)}")
            return None

    def fit(self, *colors: str) -> FittedMethod:
        return self.method.fit(_few(*colors), self.pool, self.encoder)

    def expect_same(self, one: FittedMethod, other: FittedMethod, problem: str) -> None:
        self.expect(np.array_equal(one.logits(_IMAGES), other.logits(_IMAGES)), problem)

    def check_declarations(self) -> None:
        from promptboost.methods.base import Group, Method, Transfer

        kind = type(self.method)
        if not isinstance(self.method, Method):
            self.expect(False, f"{kind.__name__} does not derive from promptboost.methods.Method")
            return
        frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
        problem = "is not a frozen dataclass: add @dataclass(frozen=True)"
        self.expect(frozen, f"{kind.__name__} {problem}")
        wanted = {"name": str, "group": Group, "carries_over": Transfer, "learns": bool}
        for name, of in wanted.items():
            problem = f"{name} is missing: {name}: ClassVar[{of.__name__}] = … in the class"
            self.expect(isinstance(getattr(kind, name, None), of), problem)

    def check_spelling(self) -> None:
        from promptboost.methods.registry import make_method, spelled

        spelling = spelled(self.method)
        what = f"make_method({spelling!r}), which its files name it by,"
        again = self.attempt(what, lambda: make_method(spelling))
        self.expect(
            again is None or again == self.method,
            f"{spelling!r} makes another method: settings are texts, numbers, true and false, or None",
        )

    def check_before_work(self) -> bool:
        """Check what happens before any work; tell whether the method can be fitted."""
        shots, before = _few(*_FOUR), len(self.problems)
        self.attempt("check()", lambda: self.method.check(shots, self.pool, self.encoder))
        if len(self.problems) > before:
            return False
        assert isinstance(shots.images, _Colors)
        problem = "check() looks at the images: leave that to fit(), it takes long"
        self.expect(not shots.images.asked, problem)
        problem = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of divisions by zero
                self.method.check(_few(), self.pool, self.encoder)
                logits = self.fit().logits(_IMAGES)
            problem = "" if np.isfinite(logits).all() else "logits() are not finite"
        except PromptBoostError:
            pass
        except Exception as error:
            problem = f"it raises {_described(error)}"
        self.expect(
            not problem,
            f"without images {problem}; have check() raise an error of promptboost.errors that says "
            "what is missing",
        )
        return True

    def check_answers(self, fitted: FittedMethod) -> bool:
        """Check one fitted classifier; tell whether it answers."""
        from promptboost.methods.base import FittedMethod

        if not isinstance(fitted, FittedMethod):
            self.expect(False, f"fit() returns {type(fitted).__name__}, not a FittedMethod")
            return False
        origin = self.attempt("origin", lambda: fitted.origin)
        if origin is not None:
            right = tuple(origin.class_names) == ("fire", "ice") and origin.encoder is self.encoder
            self.expect(right, "origin is not that of the fit: use self.origin(shots, encoder)")
        logits = self.attempt("logits()", lambda: fitted.logits(_IMAGES))
        if logits is None:
            return False
        shape, dtype = getattr(logits, "shape", None), getattr(logits, "dtype", None)
        if shape != (4, 2) or dtype != np.float32:
            wanted = "for 4 images and 2 classes, not float32 (4, 2)"
            self.expect(False, f"logits() returns {dtype} of shape {shape} {wanted}")
            return False
        self.expect(bool(np.isfinite(logits).all()), "logits() are not finite")
        guesses = self.attempt("predict()", lambda: fitted.predict(_IMAGES))
        right = guesses is None or np.array_equal(guesses, logits.argmax(axis=1))
        self.expect(right, "predict() does not return the class of the highest logit")
        words = self.attempt("words()", fitted.words)
        self.expect(words is None or len(words) == 2, "words() has not one bank for each class")
        return True

    def check_repeats(self, fitted: FittedMethod) -> None:
        again = self.attempt("a second fit()", lambda: self.fit(*_FOUR))
        if again is not None:
            problem = "two fits with the same settings differ: draw from "
            self.expect_same(again, fitted, problem + "np.random.default_rng(self.seed)")
        if not self.method.learns:
            problem = "learns is False, but other images give another classifier"
            fewer = self.attempt("fit()", lambda: self.fit("red", "blue"))
            if fewer is not None:  # else the fit has its own finding
                self.expect_same(fewer, fitted, problem)

    def check_archive(self, fitted: FittedMethod) -> None:
        from promptboost.methods.archive import load_fitted, save_fitted

        def saved_and_loaded() -> FittedMethod:
            with tempfile.TemporaryDirectory() as folder:
                save_fitted(fitted, folder)
                return load_fitted(folder, self.encoder)

        again = self.attempt("saving and loading", saved_and_loaded)
        if again is not None:
            problem = f"what is loaded is {a_type(again)}: check its kind"
            self.expect(type(again) is type(fitted), problem)
            problem = "a classifier that was saved and loaded answers differently"
            self.expect_same(again, fitted, f"{problem}: state() leaves something out")

    def check_transfer(self, fitted: FittedMethod) -> None:
        from promptboost.methods.base import Transfer
        from promptboost.methods.eft import emulate

        declared = f"carries_over is Transfer.{self.method.carries_over.name}"
        if self.method.carries_over is Transfer.REFIT:
            try:
                fitted.transfer(self.other)
                self.problems.append(f"{declared}, but transfer() returns a classifier")
            except EncoderError:
                pass
            except Exception as error:
                problem = f"{declared}: transfer() must raise EncoderError, not {error!r}"
                self.problems.append(problem)
            return
        by_text = self.method.carries_over is Transfer.TEXT
        move = fitted.transfer if by_text else lambda encoder: emulate(fitted, encoder)
        moved = self.attempt(f"{declared}: moving it", lambda: move(self.other))
        if moved is None:
            return
        right = not by_text or (fitted.words() is not None and moved.words() == fitted.words())
        problem = "but words() are not the same on the other encoder, or are None"
        self.expect(right, f"{declared}, {problem}")
        logits = self.attempt("logits() after the transfer", lambda: moved.logits(_IMAGES))
        right = logits is None or (logits.shape == (4, 2) and bool(np.isfinite(logits).all()))
        self.expect(right, "logits() after the transfer are not finite numbers of shape (4, 2)")


_TEXTS = ["a photo of a cat.", "an old lighthouse by the sea", "", "a cat, " * 60]
# Of every part of an encoder its type, where it is no method, and what it is.
_PARTS: dict[str, tuple[tuple[type, ...], str]] = {
    "id": ((str,), "the name a user types to load it"),
    "fingerprint": ((str,), "a text that changes whenever an embedding could change"),
    "dim": ((int,), "the length of an embedding, above zero"),
    "context_length": ((int,), "how many tokens of a text it reads, above zero"),
    "causal_text": ((bool,), "whether padding after a text cannot matter; False if in doubt"),
    "logit_scale": (
        (float, int),
        "the factor on cosines before a softmax, above zero; CLIP has 100",
    ),
    "encode_texts": ((), "a method that maps a list of texts to an array of shape (n, dim)"),
    "encode_images": ((), "a method that maps PIL images to an array of shape (n, dim)"),
    "count_tokens": ((), "a method that maps a list of texts to an array of n integers"),
}


def check_encoder(encoder: Any) -> list[str]:
    """Return what an object lacks to be an :class:`~promptboost.Encoder`, and what to do.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> check_encoder(FakeEncoder())
    []
    >>> check_encoder("ViT-B-32")[0]
    'there is no attribute id: the name a user types to load it'
    """
    problems = [
        f"there is no attribute {part}: {_PARTS[part][1]}"
        for part in ENCODER_PARTS
        if not hasattr(encoder, part)
    ]
    for part, (kinds, meaning) in _PARTS.items():
        if not kinds or not hasattr(encoder, part):
            continue
        value = getattr(encoder, part)
        if not isinstance(value, kinds):
            problems.append(f"{part} is {value!r}: it must be of type {kinds[0].__name__}")
        elif part != "causal_text" and (
            value == "" or (isinstance(value, int | float) and value <= 0)
        ):
            problems.append(f"{part} is {value!r}: {meaning}")
    if problems:
        return problems
    return [
        *_check_rows("encode_texts", encoder.encode_texts, _TEXTS, encoder.dim),
        *_check_images(encoder),
        *_check_tokens(encoder),
    ]


def _check_images(encoder: Encoder) -> list[str]:
    from PIL import Image

    sizes = {"red": (64, 48), "blue": (48, 64), "white": (300, 200)}
    images = [Image.new("RGB", size, color) for color, size in sizes.items()]
    problems = _check_rows("encode_images", encoder.encode_images, images, encoder.dim)
    if not problems:
        try:
            encoder.encode_images(iter(images))
        except Exception as error:
            problems.append(f"encode_images fails on an iterator of images: {_described(error)}")
    return problems


def _check_rows(
    name: str, encode: Callable[[list[Any]], Any], items: list[Any], dim: int
) -> list[str]:
    try:
        many, again, one = encode(items), encode(items), encode(items[:1])
        none = encode([])
    except Exception as error:
        return [f"{name} fails on {len(items)}, one or no items: {_described(error)}"]
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


def _check_tokens(encoder: Encoder) -> list[str]:
    try:
        counts = np.asarray(encoder.count_tokens(_TEXTS))
    except Exception as error:
        return [f"count_tokens fails: {_described(error)}"]
    if counts.shape != (len(_TEXTS),) or counts.dtype.kind not in "iu":
        return [f"count_tokens must return {len(_TEXTS)} integers for {len(_TEXTS)} texts"]
    if not counts[3] > counts[0]:
        return ["count_tokens must count all tokens of a text, also those that are cut off"]
    return []


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

"""Checks of plugin methods and encoders."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from promptboost.encoders.base import ENCODER_PARTS, Encoder, StagedEncoder, UnitRows
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import EncoderError, PromptBoostError, a_type
from promptboost.pool import PromptPool, build_pool

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.methods.base import FewShotSet, FittedMethod, Method


class _Colors:
    """Images of one color each; `opened` records whether they were read."""

    def __init__(self, colors: Sequence[str]) -> None:
        self.colors = colors
        self.opened = False

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
            self.opened = True
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


class _Problems(list[str]):
    """The problems found so far, a sentence each."""

    def expect_same(self, fitted: FittedMethod, other: FittedMethod, problem: str) -> None:
        """Add a problem unless two classifiers answer alike."""
        self.expect(np.array_equal(fitted.logits(_IMAGES), other.logits(_IMAGES)), problem)

    def expect(self, right: object, problem: str) -> None:
        """Add a problem unless something is right."""
        if not right:
            self.append(problem)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Add an error that ends a block as a problem."""
        try:
            yield
        except Exception as error:
            self.append(f"{what} {type(error).__name__}: {error}")


def check_method(method: Method, *, encoder: Encoder | None = None) -> list[str]:
    """Return the problems of a method, one sentence each.

    Fits four images of the classes ``fire`` and ``ice``, and checks declarations, early errors, shapes,
    repeatability, saving and loading, and the declared transfer.

    Parameters
    ----------
    method : Method
        With settings for a short fit.
    encoder : Encoder, optional
        Encoder of the fit; by default one without weights.

    Examples
    --------
    >>> from promptboost.methods import make_method
    >>> check_method(make_method("zero-shot"))
    []
    >>> check_method(make_method("cupl?sources=mine"))[0]  # doctest: +ELLIPSIS
    "check() raises PoolError: ..."
    """
    encoder = FakeEncoder() if encoder is None else encoder
    pool = build_pool(["fire", "ice"], descriptions=_WORDS)
    problems = _Problems()
    _check_declarations(problems, method)
    if problems:  # everything else builds on them
        return problems
    _check_spelling(problems, method)
    shots, earlier = _few(*_FOUR), len(problems)
    with problems.during("check() raises"):
        method.check(shots, pool, encoder)
    if len(problems) > earlier:
        return problems
    opened = isinstance(shots.images, _Colors) and shots.images.opened
    problems.expect(not opened, "check() reads the images, which is slow: do it in fit()")
    _check_without_images(problems, method, pool, encoder)
    with problems.during("fit() raises"):
        fitted = method.fit(shots, pool, encoder)
        if _check_answers(problems, fitted, encoder):
            _check_repeats(problems, method, fitted, pool)
            _check_archive(problems, fitted)
            _check_transfer(problems, method, fitted, FakeEncoder(seed=1))
    return problems


def _check_declarations(problems: _Problems, method: Method) -> None:
    from promptboost.methods.base import Method, Transfer

    kind = type(method)
    if not isinstance(method, Method):
        problems.append(f"{kind.__name__} does not derive from promptboost.methods.Method")
        return
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
    problem = "is not a frozen dataclass: add @dataclass(frozen=True)"
    problems.expect(frozen, f"{kind.__name__} {problem}")
    wanted = {"name": str, "carries_over": Transfer, "learns": bool}
    for name, of in wanted.items():
        problem = f"{name} is missing: {name}: ClassVar[{of.__name__}] = … in the class"
        problems.expect(isinstance(getattr(kind, name, None), of), problem)


def _check_spelling(problems: _Problems, method: Method) -> None:
    from promptboost.methods.base import spelled
    from promptboost.methods.registry import make_method

    spelling = spelled(method)
    with problems.during(f"make_method({spelling!r}), which its files name it by, raises"):
        problems.expect(
            make_method(spelling) == method,
            f"{spelling!r} makes another method: settings are texts, numbers, true and false, or None",
        )


def _check_without_images(
    problems: _Problems, method: Method, pool: PromptPool, encoder: Encoder
) -> None:
    problem = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of divisions by zero
            method.check(_few(), pool, encoder)
            logits = method.fit(_few(), pool, encoder).logits(_IMAGES)
        problem = "" if np.isfinite(logits).all() else "logits() are not finite"
    except PromptBoostError:
        pass
    except Exception as error:
        problem = f"it raises {type(error).__name__}: {error}"
    problems.expect(
        not problem,
        f"without images {problem}; make check() raise an error of promptboost.errors with the reason",
    )


def _check_answers(problems: _Problems, fitted: FittedMethod, encoder: Encoder) -> bool:
    """Check a fitted classifier; return whether it predicts."""
    from promptboost.methods.base import FittedMethod

    if not isinstance(fitted, FittedMethod):
        problems.append(f"fit() returns {type(fitted).__name__}, not a FittedMethod")
        return False
    with problems.during("origin raises"):
        origin = fitted.origin
        right = tuple(origin.class_names) == ("fire", "ice") and origin.encoder is encoder
        problems.expect(right, "origin is not that of the fit: use self.origin(shots, encoder)")
    with problems.during("logits() raises"):
        logits = fitted.logits(_IMAGES)
        if not _are_logits(problems, logits):
            return False
        with problems.during("predict() raises"):
            right = np.array_equal(fitted.predict(_IMAGES), logits.argmax(axis=1))
            problems.expect(right, "predict() does not return the class of the highest logit")
        with problems.during("words() raises"):
            words = fitted.words()
            problems.expect(
                words is None or len(words) == 2, "words() has not one bank for each class"
            )
        return True
    return False


def _are_logits(problems: _Problems, logits: Any, when: str = "") -> bool:
    shape, dtype = getattr(logits, "shape", None), getattr(logits, "dtype", None)
    if shape != (4, 2) or dtype != np.float32:
        wanted = "for 4 images and 2 classes, not float32 (4, 2)"
        problems.append(f"logits(){when} returns {dtype} of shape {shape} {wanted}")
        return False
    problems.expect(np.isfinite(logits).all(), f"logits(){when} are not finite")
    return True


def _check_repeats(
    problems: _Problems, method: Method, fitted: FittedMethod, pool: PromptPool
) -> None:
    encoder = fitted.origin.encoder
    with problems.during("a second fit() raises"):
        problem = (
            "two fits with the same settings differ: draw from np.random.default_rng(self.seed)"
        )
        problems.expect_same(method.fit(_few(*_FOUR), pool, encoder), fitted, problem)
        if not method.learns:
            fewer = method.fit(_few("red", "blue"), pool, encoder)
            problem = "learns is False, but other images give another classifier"
            problems.expect_same(fewer, fitted, problem)


def _check_archive(problems: _Problems, fitted: FittedMethod) -> None:
    from promptboost.methods.archive import load_fitted, save_fitted

    with problems.during("saving and loading raises"), tempfile.TemporaryDirectory() as folder:
        save_fitted(fitted, folder)
        again = load_fitted(folder, fitted.origin.encoder)
        problem = f"what is loaded is {a_type(again)}: check its kind"
        problems.expect(type(again) is type(fitted), problem)
        problem = (
            "a classifier that was saved and loaded answers differently: keep all of it in fields"
        )
        problems.expect_same(again, fitted, problem)


def _check_transfer(
    problems: _Problems, method: Method, fitted: FittedMethod, other: Encoder
) -> None:
    from promptboost.methods.base import Transfer
    from promptboost.methods.eft import emulate

    declared = f"carries_over is Transfer.{method.carries_over.name}"
    if method.carries_over is Transfer.REFIT:
        with problems.during(f"{declared}: transfer() must raise EncoderError, not"):
            try:
                fitted.transfer(other)
                problems.append(f"{declared}, but transfer() returns a classifier")
            except EncoderError:
                pass
        return
    by_text = method.carries_over is Transfer.TEXT
    with problems.during(f"{declared}: moving it raises"):
        moved = fitted.transfer(other) if by_text else emulate(fitted, other)
        words = fitted.words()
        right = not by_text or (words is not None and moved.words() == words)
        problem = "but words() are not the same on the other encoder, or are None"
        problems.expect(right, f"{declared}, {problem}")
        _are_logits(problems, moved.logits(_IMAGES), " after the transfer")


_TEXTS = ["a photo of a cat.", "an old lighthouse by the sea", "", "a cat, " * 60]
# Types and descriptions of the attributes of an encoder; methods have no type.
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
    """Return the problems of an object as an :class:`~promptboost.Encoder`, and their solutions.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> check_encoder(FakeEncoder())
    []
    >>> check_encoder("ViT-B-32")[0]
    'there is no attribute id: the name a user types to load it'
    """
    problems = _Problems(
        f"there is no attribute {name}: {_PARTS[name][1]}"
        for name in ENCODER_PARTS
        if not hasattr(encoder, name)
    )
    for name, (kinds, meaning) in _PARTS.items():
        if not kinds or not hasattr(encoder, name):
            continue
        value = getattr(encoder, name)
        if not isinstance(value, kinds):
            problems.append(f"{name} is {value!r}: it must be of type {kinds[0].__name__}")
        elif name != "causal_text" and (
            value == "" or (isinstance(value, int | float) and value <= 0)
        ):
            problems.append(f"{name} is {value!r}: {meaning}")
    if problems:
        return problems
    from PIL import Image

    sizes = {"red": (64, 48), "blue": (48, 64), "white": (300, 200)}
    images = [Image.new("RGB", size, color) for color, size in sizes.items()]
    _check_rows(problems, "encode_texts", encoder.encode_texts, _TEXTS, encoder.dim)
    _check_rows(problems, "encode_images", encoder.encode_images, images, encoder.dim)
    with problems.during("encode_images fails on an iterator of images:"):
        encoder.encode_images(iter(images))
    encode_images = encoder.encode_images
    if isinstance(encoder, StagedEncoder):
        with problems.during("preprocess or encode_preprocessed fails:"):
            rows = encoder.encode_preprocessed([encoder.preprocess(image) for image in images])
            problem = (
                "encode_preprocessed and encode_images return other numbers for the same images"
            )
            problems.expect(np.allclose(rows, encode_images(images), atol=1e-5), problem)
    with problems.during("count_tokens fails:"):
        counts = np.asarray(encoder.count_tokens(_TEXTS))
        right = counts.shape == (len(_TEXTS),) and counts.dtype.kind in "iu"
        problem = f"count_tokens must return {len(_TEXTS)} integers for {len(_TEXTS)} texts"
        problems.expect(right, problem)
        problem = "count_tokens must count all tokens of a text, also those that are cut off"
        problems.expect(not right or counts[3] > counts[0], problem)
    return problems


def _check_rows(
    problems: _Problems, name: str, encode: Callable[[list[Any]], Any], items: list[Any], dim: int
) -> None:
    expected = len(items), dim
    with problems.during(f"{name} fails on {len(items)}, one or no items:"):
        many, again, single, none = encode(items), encode(items), encode(items[:1]), encode([])
        if not isinstance(many, np.ndarray) or many.shape != expected:
            shape = getattr(many, "shape", type(many).__name__)
            wanted = f"an array of shape {expected}"
            problems.append(f"{name} returned {shape} for {len(items)} items: {wanted}")
        elif not np.isfinite(many).all():
            problems.append(f"{name} returned numbers that are not finite")
        else:
            lengths = np.linalg.norm(many, axis=1)
            checks = {
                f"returned {many.dtype}: make it float32": many.dtype == np.float32,
                f"of an empty list must be an array of shape (0, {dim})": np.shape(none)
                == (0, dim),
                "returned rows whose length is not one: see encoders.unit_rows": np.allclose(
                    lengths, 1.0, atol=1e-3
                ),
                "returned other numbers the second time: switch off what is random": np.array_equal(
                    many, again
                ),
                "depends on what else is in the list: mask padding, fix batch norm": np.allclose(
                    many[:1], single, atol=1e-3
                ),
                "returned the same row for different items": not np.allclose(
                    many[0], many[1], atol=1e-6
                ),
            }
            for problem, right in checks.items():
                problems.expect(right, f"{name} {problem}")

"""For tests: made-up tasks, and checks that tell the author of a plugin what it lacks."""

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import ENCODER_PARTS, Encoder, UnitRows, unit_rows

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.encoders.fake import FakeEncoder
    from promptboost.methods import FewShotSet, Fitted, Method
    from promptboost.pool import PromptPool

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


def colour_shots(red: str, blue: str) -> "tuple[FewShotSet, FakeEncoder]":
    """Make a few-shot set of four images, and the encoder that sees them.

    Parameters
    ----------
    red, blue : str
        Names of the two classes. Images of the first are red and dark red, those of the second
        blue and light blue.

    Examples
    --------
    >>> shots, encoder = colour_shots("fire", "ice")
    >>> shots.class_names, shots.labels.tolist(), shots.images.rows(encoder).shape
    (('fire', 'ice'), [0, 0, 1, 1], (4, 32))
    """
    from promptboost.encoders.fake import FakeEncoder
    from promptboost.methods import FewShotSet, RowImages

    encoder = FakeEncoder()
    rows = encoder.encode_texts(["red", "dark red", "blue", "light blue"])[:, None]
    images = RowImages({encoder.id: rows})
    return FewShotSet(images, np.array([0, 0, 1, 1]), (red, blue)), encoder


class _Colours:
    """Images of one colour each, which any encoder can embed; knows whether it was asked."""

    def __init__(self, colours: Sequence[str]) -> None:
        self.colours = colours
        self.asked = False

    def __len__(self) -> int:
        return len(self.colours)

    def rows(self, encoder: Encoder) -> UnitRows:
        return self.views(encoder)[:, 0]

    def views(self, encoder: Encoder) -> UnitRows:
        self.asked = True
        images = list(self.images())
        crops = [image.crop((0, 0, 16, 16)) for image in images]
        rows = encoder.encode_images([*images, *crops])
        return np.ascontiguousarray(rows.reshape(2, len(images), encoder.dim).transpose(1, 0, 2))

    def images(self) -> "Iterator[Image]":
        from PIL import Image

        for colour in self.colours:
            self.asked = True
            yield Image.new("RGB", (32, 32), colour)


class _Findings:
    """The problems so far."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def expect(self, right: bool, problem: str) -> None:
        if not right:
            self.problems.append(problem)

    def attempt(self, what: str, work: Callable[[], _T]) -> _T | None:
        try:
            return work()
        except Exception as error:  # whatever is wrong is a finding, not the end
            self.problems.append(f"{what} raises {type(error).__name__}: {error}")
            return None


def check_method(
    method: "Method",
    *,
    encoder: Encoder | None = None,
    other: Encoder | None = None,
    pool: "PromptPool | None" = None,
) -> list[str]:
    """Return what a method lacks to be used like those that are built in.

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

    Returns
    -------
    list of str
        One sentence for each problem; empty if there is none.

    Examples
    --------
    >>> from promptboost.methods import make_method
    >>> check_method(make_method("zero-shot"))
    []
    >>> check_method(make_method("cupl?sources=mine"))[0]  # doctest: +ELLIPSIS
    "check() raises PoolError: ..."
    """
    from promptboost.encoders.fake import FakeEncoder

    findings = _Findings()
    _check_declarations(method, findings)
    if findings.problems:  # everything else builds on them
        return findings.problems
    _check_spelling(method, findings)
    encoder = FakeEncoder() if encoder is None else encoder
    other = FakeEncoder(seed=1) if other is None else other
    pool = _fire_and_ice() if pool is None else pool
    if _check_first(method, pool, encoder, findings):
        fitted = findings.attempt("fit()", lambda: method.fit(_few(), pool, encoder))
        if fitted is not None and _check_answers(fitted, encoder, findings):
            _check_repeats(method, fitted, pool, encoder, findings)
            _check_archive(fitted, encoder, findings)
            _check_transfer(method, fitted, other, findings)
    return findings.problems


def _few(colours: Sequence[str] = ("red", "darkred", "blue", "lightblue")) -> "FewShotSet":
    from promptboost.methods import FewShotSet

    labels = np.array([int("blue" in colour) for colour in colours], dtype=np.int64)
    return FewShotSet(_Colours(colours), labels, ("fire", "ice"), "a photo of {}.")


def _fire_and_ice() -> "PromptPool":
    from promptboost.pool import build_pool

    sentences = {"fire": ["fire is red", "fire is hot"], "ice": ["ice is blue", "ice is cold"]}
    parts = {"fire": ["a red colour"], "ice": ["a blue colour"]}
    return build_pool(["fire", "ice"], descriptions={"CuPL": sentences, "DCLIP": parts})


def _check_declarations(method: "Method", findings: _Findings) -> None:
    from promptboost.methods import Group, Method, Transfer

    kind = type(method)
    if not isinstance(method, Method):
        findings.problems.append(f"{kind.__name__} does not derive from promptboost.methods.Method")
        return
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
    findings.expect(
        frozen, f"{kind.__name__} is not a frozen dataclass: add @dataclass(frozen=True)"
    )
    wanted = {"name": str, "group": Group, "carries_over": Transfer, "learns": bool}
    for attribute, of in wanted.items():
        right = isinstance(getattr(kind, attribute, None), of)
        findings.expect(
            right, f"{attribute} is missing: {attribute}: ClassVar[{of.__name__}] = … in the class"
        )


def _check_spelling(method: "Method", findings: _Findings) -> None:
    from promptboost.methods import make_method, spelled

    spelling = spelled(method)
    again = findings.attempt(
        f"make_method({spelling!r}), which its files name it by,", lambda: make_method(spelling)
    )
    if again is not None:
        findings.expect(
            again == method,
            f"{spelling!r} makes another method: settings are texts, numbers, true and false, or None",
        )


def _check_first(
    method: "Method", pool: "PromptPool", encoder: Encoder, findings: _Findings
) -> bool:
    """Check what happens before any work; tell whether the method can be fitted."""
    from promptboost.errors import PromptBoostError

    shots, before = _few(), len(findings.problems)
    findings.attempt("check()", lambda: method.check(shots, pool, encoder))
    if len(findings.problems) > before:
        return False
    assert isinstance(shots.images, _Colours)
    findings.expect(
        not shots.images.asked, "check() looks at the images: leave that to fit(), it takes long"
    )
    problem = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of divisions by zero
            method.check(_few(()), pool, encoder)
            logits = method.fit(_few(()), pool, encoder).logits(_few().images)
        problem = "" if np.isfinite(logits).all() else "logits() are not finite"
    except PromptBoostError:
        pass
    except Exception as error:
        problem = f"it raises {type(error).__name__}: {error}"
    findings.expect(
        not problem,
        f"without images {problem}; have check() raise an error of promptboost.errors that says what "
        "is missing",
    )
    return True


def _check_answers(fitted: "Fitted", encoder: Encoder, findings: _Findings) -> bool:
    """Check one fitted classifier; tell whether it answers."""
    from promptboost.methods import Fitted

    if not isinstance(fitted, Fitted):
        findings.problems.append(f"fit() returns {type(fitted).__name__}, not a Fitted")
        return False
    images = _few().images
    origin = findings.attempt("origin", lambda: fitted.origin)
    if origin is not None:
        right = tuple(origin.class_names) == ("fire", "ice") and origin.encoder is encoder
        findings.expect(right, "origin is not that of the fit: use self.origin(shots, encoder)")
    logits = findings.attempt("logits()", lambda: fitted.logits(images))
    if logits is None or getattr(logits, "shape", None) != (4, 2) or logits.dtype != np.float32:
        shape, dtype = getattr(logits, "shape", None), getattr(logits, "dtype", None)
        findings.expect(
            logits is None,
            f"logits() returns {dtype} of shape {shape} for 4 images and 2 classes, not float32 (4, 2)",
        )
        return False
    findings.expect(bool(np.isfinite(logits).all()), "logits() are not finite")
    guesses = findings.attempt("predict()", lambda: fitted.predict(images))
    if guesses is not None:
        right = np.array_equal(guesses, logits.argmax(axis=1))
        findings.expect(right, "predict() does not return the class of the highest logit")
    words = findings.attempt("words()", fitted.words)
    findings.expect(words is None or len(words) == 2, "words() has not one bank for each class")
    return True


def _check_repeats(
    method: "Method", fitted: "Fitted", pool: "PromptPool", encoder: Encoder, findings: _Findings
) -> None:
    images = _few().images
    again = findings.attempt("a second fit()", lambda: method.fit(_few(), pool, encoder))
    if again is not None:
        findings.expect(
            np.array_equal(again.logits(images), fitted.logits(images)),
            "two fits with the same settings differ: draw from np.random.default_rng(self.seed)",
        )
    if not method.learns:
        fewer = findings.attempt("fit()", lambda: method.fit(_few(("red", "blue")), pool, encoder))
        findings.expect(
            fewer is not None and np.array_equal(fewer.logits(images), fitted.logits(images)),
            "learns is False, but other images give another classifier",
        )


def _check_archive(fitted: "Fitted", encoder: Encoder, findings: _Findings) -> None:
    from promptboost.methods import load_fitted, save_fitted

    def saved_and_loaded() -> "Fitted":
        with tempfile.TemporaryDirectory() as folder:
            save_fitted(fitted, folder)
            return load_fitted(folder, encoder)

    again = findings.attempt("saving and loading", saved_and_loaded)
    if again is not None:
        images = _few().images
        findings.expect(
            type(again) is type(fitted),
            f"what is loaded is a {type(again).__name__}: check its kind",
        )
        findings.expect(
            np.array_equal(again.logits(images), fitted.logits(images)),
            "a classifier that was saved and loaded answers differently: state() leaves something out",
        )


def _check_transfer(
    method: "Method", fitted: "Fitted", other: Encoder, findings: _Findings
) -> None:
    from promptboost.errors import EncoderError
    from promptboost.methods import Transfer
    from promptboost.methods.eft import emulate

    declared = f"carries_over is Transfer.{method.carries_over.name}"
    if method.carries_over is Transfer.REFIT:
        try:
            fitted.transfer(other)
        except EncoderError:
            return
        except Exception as error:
            findings.problems.append(
                f"{declared}: transfer() must raise EncoderError, not {error!r}"
            )
        else:
            findings.problems.append(f"{declared}, but transfer() returns a classifier")
        return
    by_text = method.carries_over is Transfer.TEXT
    moved = findings.attempt(
        f"{declared}: moving it",
        lambda: fitted.transfer(other) if by_text else emulate(fitted, other),
    )
    if moved is None:
        return
    if by_text:
        findings.expect(
            fitted.words() is not None and moved.words() == fitted.words(),
            f"{declared}, but words() are not the same on the other encoder, or are None",
        )
    logits = findings.attempt("logits() after the transfer", lambda: moved.logits(_few().images))
    if logits is not None:
        findings.expect(
            logits.shape == (4, 2) and bool(np.isfinite(logits).all()),
            "logits() after the transfer are not finite numbers of shape (4, 2)",
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

"""Measures of predictions by method, class and confusion, and the baselines of every fit.

A column of the results is one field of :class:`MethodResult` and one line in
:meth:`Guesses.result`; the page shows it in ``report/templates/report.html.j2``.

The baselines are zero-shot, the means of templates and of the pool, and logistic regression, under the
names of the same methods in ``promptboost compare``. An embedded pool is not embedded again; one too
large for memory is embedded class by class.
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, from_grid
from promptboost.encoders.base import Encoder, UnitRows
from promptboost.model import Head
from promptboost.pool import PromptPool, fill
from promptboost.pool.templates import plain_template
from promptboost.progress import Progress, no_progress
from promptboost.threads import single_blas_thread
from promptboost.training import PoolTexts
from promptboost.training.pool_rows import encode_by

if TYPE_CHECKING:
    from promptboost.encoders.embedder import Embedder


#: The name of the fitted classifier among the methods, and of its text alone where it has a residual.
OURS, TEXT = "promptboost", "text"

Indices = NDArray[np.intp] | NDArray[np.int64]
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(ge=0)]

#: The least probabilities of an answer that results have a line for.
MIN_PROBABILITIES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)

_IMAGES_SHOWN = 6
_CURVE_POINTS = 50


class Answered(msgspec.Struct, frozen=True):
    """Selective prediction: images with a probability below `min_probability` are rejected."""

    min_probability: Share
    answered: Count
    coverage: Share  # share of the images that are answered
    accuracy: Share | None  # among those; None if there are none


class ReliabilityBin(msgspec.Struct, frozen=True):
    """Images whose highest probability is above `low` and at most `high`."""

    low: Share
    high: Share
    count: Count
    probability: Share  # of the best class, the mean
    accuracy: Share


class MethodResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one method on the test images."""

    name: str
    label: str  # for people
    accuracy: Share | None
    class_accuracy: Share | None  # the mean over classes
    learn_accuracy: Share | None  # on the training images
    log_loss: Positive | None = None  # of the probabilities, where the method has any
    expected_calibration_error: Share | None = None
    unseen_accuracy: Share | None = None  # without leaked images; None where none is or all are
    coverage: tuple[Answered, ...] = ()  # at MIN_PROBABILITIES, where the method has probabilities
    coverage_curve: tuple[Answered, ...] = ()  # points of the whole curve, fewest answers first
    reliability: tuple[ReliabilityBin, ...] = ()  # bins with images, the least probable first


class ClassResult(msgspec.Struct, frozen=True):
    """The accuracy of each method in one class; None without images."""

    class_name: str = msgspec.field(name="class")
    count: Count
    accuracy: dict[str, Share | None]


class Confusion(msgspec.Struct, frozen=True):
    """Images of one class predicted as another, with the names of some."""

    true: str
    predicted: str
    count: Count
    images: tuple[str, ...] = ()
    text_shares: tuple[Share, ...] = ()  # of these predictions, where there is a residual


@dataclass(frozen=True)
class Guesses:
    """The predictions of a method, as class indices."""

    name: str
    label: str
    held_out: Indices
    learn: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    probabilities: NDArray[np.floating] | None = None  # (n, K), of the held-out images

    def result(
        self,
        labels: Indices,
        learn_labels: Indices | None = None,
        leaked: NDArray[np.bool_] | None = None,
    ) -> MethodResult:
        """Compute the results; `leaked` marks test images that are in the training set."""
        fresh = None if leaked is None or not leaked.any() else ~leaked
        chances, of_chances = self.probabilities, dict[str, Any]()
        if chances is not None and len(labels):
            of_chances = {
                "log_loss": log_loss(chances, labels),
                "expected_calibration_error": expected_calibration_error(chances, labels),
                "coverage": tuple(coverage(chances, labels, least) for least in MIN_PROBABILITIES),
                "coverage_curve": thinned(coverage_curve(chances, labels)),
                "reliability": reliability(chances, labels),
            }
        return MethodResult(
            name=self.name,
            label=self.label,
            accuracy=accuracy(self.held_out, labels),
            class_accuracy=class_accuracy(self.held_out, labels),
            learn_accuracy=None if learn_labels is None else accuracy(self.learn, learn_labels),
            unseen_accuracy=None
            if fresh is None
            else accuracy(self.held_out[fresh], labels[fresh]),
            **of_chances,
        )


def accuracy(predicted: Indices, labels: Indices) -> float | None:
    """Return the share of correct predictions; None without images."""
    return float(np.mean(predicted == labels)) if len(labels) else None


def class_accuracy(predicted: Indices, labels: Indices) -> float | None:
    """Return the mean over classes of the accuracy."""
    if not len(labels):
        return None
    return float(np.mean([np.mean(predicted[labels == k] == k) for k in np.unique(labels)]))


def log_loss(probabilities: NDArray[np.floating], labels: Indices) -> float | None:
    """Return the mean of −log p of the right class; None without images.

    A probability of zero counts as the smallest positive number, so that the loss is finite.
    """
    if not len(labels):
        return None
    right = np.asarray(probabilities, dtype=np.float64)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(right, np.finfo(np.float64).tiny)).mean())


def reliability(
    probabilities: NDArray[np.floating], labels: Indices, bins: int = 15
) -> tuple[ReliabilityBin, ...]:
    """Bin images by the probability of the predicted class, into bins of equal width.

    A bin includes its upper edge but not its lower one; empty bins are omitted.
    """
    sure, right = _sure_and_right(probabilities, labels)
    index = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    return tuple(
        ReliabilityBin(
            number / bins,
            (number + 1) / bins,
            int(np.sum(index == number)),
            float(sure[index == number].mean()),
            float(right[index == number].mean()),
        )
        for number in np.unique(index).tolist()
    )


def expected_calibration_error(
    probabilities: NDArray[np.floating], labels: Indices, bins: int = 15
) -> float | None:
    """Return the expected calibration error (Guo et al., 2017); None without images.

    It is the mean over images of the difference, in their bin of :func:`reliability`, between the mean
    probability of the predicted class and the accuracy.
    """
    if not len(labels):
        return None
    gaps = (
        b.count * abs(b.probability - b.accuracy) for b in reliability(probabilities, labels, bins)
    )
    return sum(gaps) / len(labels)


def coverage(
    probabilities: NDArray[np.floating], labels: Indices, min_probability: float
) -> Answered:
    """Return the results of selective prediction at a threshold."""
    sure, right = _sure_and_right(probabilities, labels)
    answered = right[sure >= min_probability]
    n, share = len(answered), len(answered) / len(labels) if len(labels) else 0.0
    return Answered(min_probability, n, share, float(answered.mean()) if n else None)


def coverage_curve(probabilities: NDArray[np.floating], labels: Indices) -> tuple[Answered, ...]:
    """Return coverage and accuracy at every distinct probability, fewest answers first."""
    sure, right = _sure_and_right(probabilities, labels)
    levels, index = np.unique(-sure, return_inverse=True)
    answered = np.cumsum(np.bincount(index, minlength=len(levels)))
    rights = np.cumsum(np.bincount(index, weights=right, minlength=len(levels)))
    return tuple(
        Answered(-level, count, count / len(labels), good / count)
        for level, count, good in zip(
            levels.tolist(), answered.tolist(), rights.tolist(), strict=True
        )
    )


def thinned(curve: Sequence[Answered], points: int = _CURVE_POINTS) -> tuple[Answered, ...]:
    """Return some points of a curve, about evenly spaced by coverage, with the last."""
    chosen, step = [], 0
    for point in curve:
        if point.coverage * points >= step or point is curve[-1]:
            chosen.append(point)
            step = math.floor(point.coverage * points) + 1
    return tuple(chosen)


def _sure_and_right(
    probabilities: NDArray[np.floating], labels: Indices
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the highest probability of each image, and whether its class is correct."""
    chances = np.asarray(probabilities, dtype=np.float64)
    return chances.max(axis=1), chances.argmax(axis=1) == labels


def text_shares(head: Head, rows: NDArray[np.floating]) -> NDArray[np.float64] | None:
    """Return the share of the text in each prediction, from 0 to 1; None without a residual.

    The margin over the second class is the sum of a margin of the text and one of the residual; the share
    is that of the text, by absolute values.
    """
    if head.residual is None:
        return None
    if not len(rows):
        return np.ones(0)
    text = head.without_residual().scores(rows).astype(np.float64) * (head.text_scale or 1.0)
    residual = rows.astype(np.float64) @ head.residual.T
    each = np.arange(len(rows))
    best, second = np.argsort(-(text + residual), axis=1, kind="stable")[:, :2].T
    by_text, by_residual = (
        np.abs(logits[each, best] - logits[each, second]) for logits in (text, residual)
    )
    return np.asarray(by_text / np.maximum(by_text + by_residual, 1e-12))


def per_class(
    class_names: Sequence[str], labels: Indices, predicted: Mapping[str, Indices]
) -> tuple[ClassResult, ...]:
    """Return the accuracy of each method in each class."""
    return tuple(
        ClassResult(
            name,
            int(np.sum(labels == k)),
            {
                method: accuracy(guesses[labels == k], labels[labels == k])
                for method, guesses in predicted.items()
            },
        )
        for k, name in enumerate(class_names)
    )


def confusions(
    class_names: Sequence[str],
    labels: Indices,
    predicted: Indices,
    images: Sequence[str],
    shares: NDArray[np.float64] | None = None,
) -> tuple[Confusion, ...]:
    """Return the confusions, most frequent first, with the names of some images.

    `shares` are the shares of the text in the predictions; see :func:`text_shares`.
    """
    mixed: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for i, (label, guess) in enumerate(zip(labels.tolist(), predicted.tolist(), strict=True)):
        if label != guess:
            mixed[label, guess].append(i)
    return tuple(
        Confusion(
            class_names[label],
            class_names[guess],
            len(rows),
            tuple(images[i] for i in rows[:_IMAGES_SHOWN]),
            () if shares is None else tuple(float(shares[i]) for i in rows[:_IMAGES_SHOWN]),
        )
        for (label, guess), rows in sorted(mixed.items(), key=lambda pair: -len(pair[1]))
    )


#: Baselines without training images.
TEXT_BASELINES = ("zero-shot", "template-mean", "pool-mean")

# Rows converted to floats at a time: a class of a large pool has tens of thousands.
_AT_ONCE = 4096

#: Inverse strengths of regularization to choose from. Rows have length one, so little is needed.
STRENGTHS = (1.0, 10.0, 100.0, 1000.0, 10000.0)

#: Used where a class has one image only, so that there is nothing to validate on.
FIXED_C = 10.0

# Held-out images that suffice to compare strengths. Further folds are not evaluated.
_ENOUGH = 256
_STAGE = "fitting logistic regression"
# Products of a step from which threads save more than they cost: some twenty milliseconds of one core.
_WORTH_THREADS = 500_000_000


def zero_shot_head(
    class_names: Sequence[str], encoder: Encoder, pool: PromptPool | None = None
) -> Head:
    """Return the class names in the plain template as a head, as the `pool` would fill it."""
    template = plain_template(pool.templates if pool else ())
    phrases = dict(zip(pool.class_names, pool.phrases, strict=True)) if pool else {}
    texts = [fill(template, phrases.get(name, name)) for name in class_names]
    rows = encoder.encode_texts(texts)
    return Head(tuple(class_names), _unit(rows.astype(np.float64)))


def pool_heads(
    pool: PromptPool, embedder: "Embedder", grid: GridPool | None = None
) -> dict[str, Head]:
    """Return the heads of all baselines without training images, by name."""
    blocks: Iterable[tuple[GridRows, GridRows]]
    if grid is None:
        blocks = PoolTexts.of(pool).blocks(encode_by(embedder))
    else:
        blocks = zip(grid.templates, grid.prompts, strict=True)
    means = [(_mean(filled), _mean(prompts)) for filled, prompts in blocks]
    names = pool.class_names
    return {
        "zero-shot": zero_shot_head(names, embedder, pool),
        "template-mean": Head(names, _unit(filled for filled, _ in means)),
        "pool-mean": Head(names, _unit(prompts for _, prompts in means)),
    }


def guess_baselines(
    train: UnitRows,
    labels: NDArray[np.int64],
    test: UnitRows,
    heads: dict[str, Head],
    pool: PromptPool,
    *,
    groups: NDArray[np.int64] | None = None,
    seed: int,
    progress: Progress = no_progress,
) -> list[Guesses]:
    """Predict all images with every baseline; logistic regression needs images of all classes.

    `train` has the embeddings of the training images and their crops, shape (n, 1 + V, D), `test` those
    of the test images, shape (m, D).
    """
    originals = train[:, 0]
    counts = {
        "template-mean": f"mean of {len(pool.templates)} templates",
        "pool-mean": f"mean of all {pool.size:,} prompts",
    }
    guesses = [
        Guesses(
            name,
            counts.get(name, "zero-shot, “a photo of a {}.”"),
            head.predict_index(test),
            head.predict_index(originals),
        )
        for name, head in heads.items()
    ]
    if len(np.unique(labels)) == len(pool.class_names):
        weights, intercepts, _ = fit_probe(
            train, labels, groups=groups, seed=seed, progress=progress
        )
        w, b = weights.astype(np.float32), intercepts.astype(np.float32)
        predicted = ((rows @ w.T + b).argmax(axis=1) for rows in (test, originals))
        guesses.append(Guesses("logistic", "logistic regression on the images", *predicted))
    return guesses


def _mean(rows: GridRows) -> NDArray[np.float64]:
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _AT_ONCE):
        total += from_grid(rows[start : start + _AT_ONCE]).sum(axis=0, dtype=np.float64)
    return np.asarray(total / len(rows))


def _unit(means: Iterable[NDArray[np.float64]]) -> NDArray[np.float32]:
    # Scaled to length one as in CLIP's scripts: classes with diverse prompts have shorter means.
    rows = np.stack(list(means))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def fit_probe(
    rows: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    text: NDArray[np.float32] | None = None,
    groups: NDArray[np.int64] | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Fit logistic regression on images and their crops, (n, 1 + V, D); every class has one at least.

    Classes have the same total weight, and the crops of an image share that of one image. A `text`, the
    embedding of each class, (K, D), is learned as well, with the same total weight as the images.

    The inverse penalty C is the one of :data:`STRENGTHS` with the least log loss in cross-validation over
    images, at the scale of the logits that suits them; an image and its crops are in the same fold, as are
    `groups` of images, and the text is in none. Returns weights (K, D), intercepts (K,), and C.
    """
    # Compiled code: results of a run are read without it.
    from promptboost.boosting.scale import balanced_weights, calibrated_losses, held_out_folds

    fold_of, done = held_out_folds(labels, groups, np.random.default_rng(seed)), 0
    sizes = np.bincount(fold_of[fold_of >= 0])
    folds = min(int(np.searchsorted(sizes.cumsum(), _ENOUGH)) + 1, len(sizes))
    used = (fold_of >= 0) & (fold_of < folds)
    total = len(STRENGTHS) * folds + 1
    logits = np.zeros((len(STRENGTHS), len(rows), int(labels.max()) + 1), dtype=np.float32)
    progress(_STAGE, 0, total)
    for fold in range(folds):
        train, valid = fold_of != fold, fold_of == fold
        fits = _fits(rows[train], labels[train], text, STRENGTHS)
        for scores, (weights, intercepts) in zip(logits, fits, strict=True):
            scores[valid] = rows[valid, 0] @ weights.T + intercepts
            done += 1
            progress(_STAGE, done, total)
    path: tuple[float, ...] = (FIXED_C,)
    if folds:
        counted = balanced_weights(labels)[used]
        # Not by accuracy, which is too coarse on a few images.
        losses = [counted @ calibrated_losses(scores[used], labels[used]) for scores in logits]
        path = STRENGTHS[: int(np.argmin(losses)) + 1]
    *_, (weights, intercepts) = _fits(rows, labels, text, path)
    progress(_STAGE, total, total)
    return weights, intercepts, path[-1]


def _fits(
    views: NDArray[np.float32],
    labels: NDArray[np.int64],
    text: NDArray[np.float32] | None,
    strengths: Sequence[float],
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield weights and intercepts of logistic regressions, each started at the one before."""
    from sklearn.linear_model import LogisticRegression  # slower to import than many fits

    from promptboost.boosting.scale import balanced_weights

    n, n_views, dim = views.shape
    X, y = views.reshape(-1, dim).astype(np.float32), labels.repeat(n_views)
    counted = (balanced_weights(labels) / n_views).repeat(n_views)
    if text is not None:
        X, y = np.concatenate([X, text]), np.concatenate([y, np.arange(len(text))])
        counted = np.concatenate([counted, np.full(len(text), n / len(text))])
    # A loose tolerance: the last digits of the weights change no prediction, but take most steps.
    model = LogisticRegression(max_iter=2000, tol=1e-4, warm_start=True)
    # On few images, starting a second BLAS thread takes five times as long as a step of the solver.
    is_small = X.size * len(np.unique(labels)) < _WORTH_THREADS
    for C in strengths:
        threads = single_blas_thread() if is_small else nullcontext()
        with warnings.catch_warnings(), threads:
            # With few shots of many classes, scikit-learn suspects a regression target.
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            model.set_params(C=C).fit(X, y, sample_weight=counted)
        weights, intercepts = (a.astype(np.float64) for a in (model.coef_, model.intercept_))
        if len(weights) == 1:  # two classes are kept as one row: the log-odds of the second
            halves, half = weights / 2, intercepts / 2
            weights, intercepts = np.vstack([-halves, halves]), np.r_[-half, half]
        yield weights, intercepts

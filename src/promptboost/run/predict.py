"""Predict with a fitted run."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from promptboost.data import LabeledImage
from promptboost.data.decode import BadImage
from promptboost.data.source import find_images
from promptboost.encoders.embedder import ImageStream
from promptboost.errors import DataError, RunError
from promptboost.model.classifier import PromptClassifier, load
from promptboost.model.ensemble import ENSEMBLE_FILE
from promptboost.model.head import check_share, mean_proba, thresholds
from promptboost.model.prediction import Prediction
from promptboost.progress import Progress, no_progress, stage
from promptboost.run.run_folder import RunFolder

if TYPE_CHECKING:
    from promptboost.model.decisions import ClassPriors


class ScoredRow(NamedTuple):
    """An image with its embeddings and probabilities."""

    image: str
    rows: tuple[Any, ...]
    probabilities: Any


class LoadOptions(TypedDict, total=False):
    """Parameters of :func:`promptboost.load`."""

    encoder: str | Sequence[str] | None
    average: bool
    text_only: bool
    cache: bool
    device: str | None
    allow_download: bool


def open_classifier(
    run: Path, *, progress: Progress = no_progress, **options: Unpack[LoadOptions]
) -> PromptClassifier:
    """Load the classifier of a run."""
    if not (run / ENSEMBLE_FILE).exists():
        RunFolder(run).check_readable()
    classifier = load(run, progress=progress, **options)
    if options.get("encoder") is None and classifier.ensemble.encoder_id is None:
        raise RunError("the ensemble names no encoder; add --encoder NAME")
    return classifier


def predict_paths(
    classifier: PromptClassifier, paths: Sequence[str | Path], top_k: int = 1, **rules: Any
) -> Iterator[Prediction]:
    """Yield the prediction of each image file; folders are searched for images.

    Files that cannot be found or read yield a prediction with an error. For `rules`, see
    :func:`predictions`.
    """
    listing = find_images(paths)
    if not listing.images and not listing.bad:
        raise DataError(f"there are no images in {', '.join(map(str, paths))}")
    for bad in listing.bad:
        yield Prediction(image=bad.path, error=bad.reason)
    if listing.images:
        total = len(listing.images)
        yield from predictions(classifier, listing.images, top_k, total=total, **rules)


def predictions(
    classifier: PromptClassifier,
    images: Iterable[LabeledImage | BadImage],
    top_k: int = 1,
    *,
    total: int | None = None,
    **rules: Any,
) -> Iterator[Prediction]:
    """Yield the prediction of each image, in order; images are decoded ahead and embedded in batches.

    A bad image yields a prediction with an error. `total` is the number of images, for the progress bar.
    `rules` are those of :func:`decide`.
    """
    return decide(classifier, scored_rows(classifier, images, total), top_k, **rules)


def decide(
    classifier: PromptClassifier,
    scored: Iterable[ScoredRow | Prediction],
    top_k: int = 1,
    *,
    min_probability: float | None = None,
    accept: float | None = None,
    coverage: float | None = None,
    class_priors: "ClassPriors | None" = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Prediction]:
    """Yield the prediction of each image from its probabilities, in order.

    Predictions of images that cannot be read are yielded as they are. Predictions below `min_probability`
    are unsure. With `accept`, images are rejected whose largest logit is below the threshold that this
    share of cross-validated training images reach; with `coverage`, the smallest set of classes with this
    coverage is added. With `class_priors`, all images are scored before the first is returned; see
    :meth:`PromptClassifier.predict_proba`. `say` is called with a warning if adjusted predictions or sets
    are unreliable.
    """
    if min_probability is not None:
        check_share("min_probability", min_probability)
    least_logit, least = thresholds(classifier.heads, accept, coverage)
    if least == 0:
        say(
            "too few cross-validated training images for this coverage: all classes are in the sets"
        )
    names, adjusted = classifier.class_names, None
    if class_priors is not None:
        from promptboost.model.decisions import adjust_to_priors

        scored = list(scored)
        if rows := [image.probabilities for image in scored if isinstance(image, ScoredRow)]:
            values, warning = adjust_to_priors(rows, class_priors, names)
            adjusted = iter(values)
            if warning is not None:
                say(warning)
    for image in scored:
        if isinstance(image, Prediction):
            yield image
            continue
        fields: dict[str, Any] = {}
        chances = image.probabilities
        if adjusted is not None:
            fields["unadjusted"] = names[int(chances.argmax())]
            chances = next(adjusted)
        if least_logit is not None:
            logits = classifier.head.logits(image.rows[0][None])
            fields["rejected"] = bool(logits.max() < least_logit)
        yield Prediction.of(
            *(image.image, names, chances),
            top_k=top_k,
            min_probability=min_probability or 0.0,
            least=least,
            **fields,
        )


def scored_rows(
    classifier: PromptClassifier,
    images: Iterable[LabeledImage | BadImage],
    total: int | None = None,
) -> Iterator[ScoredRow | Prediction]:
    """Yield each image with embeddings and probabilities, or the prediction with the error of a bad one."""
    heads, embedders = classifier.heads, classifier.embedders
    pending: deque[LabeledImage | BadImage] = deque()  # the stream reads ahead

    def readable() -> Iterator[LabeledImage]:
        for image in images:
            pending.append(image)
            if not isinstance(image, BadImage):
                yield image

    def leading_errors() -> Iterator[Prediction]:
        while pending and isinstance(bad := pending[0], BadImage):
            pending.popleft()
            yield Prediction(image=bad.path, error=bad.reason)

    with stage(embedders[0].progress, "predicting", total) as advance:
        for block in ImageStream(readable(), embedders, advance=advance):
            indices = [index for index in range(len(block.images)) if index not in block.bad]
            rows = [matrix[indices, 0] for matrix in block.rows]
            scores: Iterator[Any] = zip(
                zip(*rows, strict=True), mean_proba(heads, rows), strict=True
            )
            for index, image in enumerate(block.images):
                yield from leading_errors()
                pending.popleft()
                if index in block.bad:
                    yield Prediction(image=image.id, error=block.bad[index].reason)
                else:
                    yield ScoredRow(image.id, *next(scores))
    yield from leading_errors()

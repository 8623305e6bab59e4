"""Predict with a fitted run."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from promptboost.data import LabeledImage
from promptboost.data.decode import BadImage
from promptboost.data.source import find_images
from promptboost.encoders.embedder import ImageStream
from promptboost.errors import DataError, RunError
from promptboost.model.classifier import PromptClassifier, check_share, load
from promptboost.model.ensemble import ENSEMBLE_FILE
from promptboost.model.head import mean_proba
from promptboost.model.prediction import Prediction
from promptboost.progress import Progress, no_progress, stage
from promptboost.run.run_folder import RunFolder


def open_classifier(
    run: Path,
    *,
    encoder: str | Sequence[str] | None = None,
    average: bool = False,
    text_only: bool = False,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
    allow_download: bool = False,
) -> PromptClassifier:
    """Load the classifier of a run; see :func:`promptboost.load` for the parameters."""
    if not (run / ENSEMBLE_FILE).exists():
        RunFolder(run).check_readable()
    classifier = load(
        run,
        encoder,
        average=average,
        cache=cache,
        text_only=text_only,
        device=device,
        progress=progress,
        allow_download=allow_download,
    )
    if encoder is None and classifier.ensemble.encoder_id is None:
        raise RunError("the ensemble does not say which encoder it is for; add --encoder NAME")
    return classifier


def predict_paths(
    classifier: PromptClassifier,
    paths: Sequence[str | Path],
    top_k: int = 1,
    min_probability: float = 0.0,
) -> Iterator[Prediction]:
    """Yield the prediction of each image file; folders are searched for images.

    Files that cannot be found or read yield a prediction with an error.
    """
    check_share("min_probability", min_probability)
    listing = find_images(paths)
    if not listing.images and not listing.bad:
        raise DataError(f"there are no images in {', '.join(map(str, paths))}")
    for bad in listing.bad:
        yield Prediction(image=bad.path, error=bad.reason)
    if listing.images:
        yield from predictions(
            classifier, listing.images, top_k, min_probability, total=len(listing.images)
        )


def predictions(
    classifier: PromptClassifier,
    images: Iterable[LabeledImage | BadImage],
    top_k: int = 1,
    min_probability: float = 0.0,
    *,
    total: int | None = None,
) -> Iterator[Prediction]:
    """Yield the prediction of each image, in order; images are decoded ahead and embedded in batches.

    Parameters
    ----------
    classifier : PromptClassifier
    images : iterable of LabeledImage or BadImage
        A bad image yields a prediction with an error.
    top_k : int, default=1
        Number of classes in each prediction.
    min_probability : float, default=0
        Predictions below it are unsure.
    total : int, optional
        Number of images, for the progress bar.
    """
    names, heads, embedders = classifier.class_names, classifier.heads, classifier.embedders
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
            probabilities: Iterator[Any] = iter(mean_proba(heads, rows))
            for index, image in enumerate(block.images):
                yield from leading_errors()
                pending.popleft()
                if index in block.bad:
                    yield Prediction(image=image.id, error=block.bad[index].reason)
                else:
                    chances = next(probabilities)
                    yield Prediction.of(image.id, names, chances, top_k, min_probability)
    yield from leading_errors()

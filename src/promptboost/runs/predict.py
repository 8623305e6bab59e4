"""What images are taken for, with nothing but a run folder and an encoder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from promptboost.data import ImageError, LabelledImage, check_images, find_images
from promptboost.errors import DataError, RunError
from promptboost.model.classifier import PromptClassifier, check_share, load
from promptboost.runs.run_folder import RunFolder

_AT_ONCE = 256


@dataclass(frozen=True)
class Prediction:
    """One image's answer."""

    image: str  # its path
    best: tuple[tuple[str, float], ...] = ()  # classes and probabilities, most probable first
    problem: str | None = None  # why it could not be read
    unsure: bool = False  # whether the best class is less probable than was asked for


@dataclass(frozen=True)
class Predictor:
    """A run that is ready to look at images."""

    classifier: PromptClassifier

    @classmethod
    def open(
        cls,
        run: Path,
        *,
        encoder: str | Sequence[str] | None = None,
        average: bool = False,
        text_only: bool = False,
        cache: bool = True,
        progress: bool = True,
        device: str | None = None,
        allow_download: bool = False,
    ) -> "Predictor":
        """Load a run with the encoder it was fitted on, the first of several, or with another.

        Where several are given, their probabilities are averaged; with `average`, those of all encoders
        it was fitted on.
        """
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
        return cls(classifier)

    def predict(
        self, paths: Sequence[str | Path], top_k: int = 1, min_probability: float = 0.0
    ) -> Iterator[Prediction]:
        """Answer for each image in turn; folders stand for all images below them.

        An image that cannot be read has an answer that says so, and so has one whose best class is less
        probable than `min_probability`.
        """
        check_share("min_probability", min_probability)
        listing = find_images(paths)
        if not listing.images and not listing.bad:
            raise DataError(f"there are no images in {', '.join(map(str, paths))}")
        for bad in listing.bad:
            yield Prediction(bad.path, problem=bad.reason)
        images = iter(listing.images)
        while part := list(islice(images, _AT_ONCE)):
            yield from self._answers(part, top_k, min_probability)

    def _answers(
        self, images: list[LabelledImage], top_k: int, min_probability: float
    ) -> Iterator[Prediction]:
        bad = {item.path: item.reason for item in check_images(images, progress=False)}
        answers = iter(self._best(images, top_k, bad))
        for image in images:
            if image.name in bad:
                yield Prediction(image.name, problem=bad[image.name])
            else:
                best = tuple(next(answers))
                yield Prediction(image.name, best, unsure=best[0][1] < min_probability)

    def _best(
        self, images: list[LabelledImage], top_k: int, bad: dict[str, str]
    ) -> list[list[tuple[str, float]]]:
        """Answer for the images that can be read; add the others to `bad`."""
        while sound := [image for image in images if image.name not in bad]:
            try:
                return self.classifier.top_k(sound, top_k)
            except ImageError as error:  # changed since it was checked
                bad[error.bad.path] = error.bad.reason
        return []

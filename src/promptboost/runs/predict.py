"""What images are taken for, with nothing but a run folder and an encoder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from promptboost.data import LabelledImage, find_images
from promptboost.encoders.stream import ImageStream
from promptboost.errors import DataError, RunError
from promptboost.model.classifier import PromptClassifier, check_share, load
from promptboost.runs.run_folder import RunFolder


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
        probable than `min_probability`. Each is decoded once, while the encoders look at those before it.
        """
        check_share("min_probability", min_probability)
        listing = find_images(paths)
        if not listing.images and not listing.bad:
            raise DataError(f"there are no images in {', '.join(map(str, paths))}")
        for bad in listing.bad:
            yield Prediction(bad.path, problem=bad.reason)
        if listing.images:
            yield from self._answers(listing.images, top_k, min_probability)

    def _answers(
        self, images: Sequence[LabelledImage], top_k: int, min_probability: float
    ) -> Iterator[Prediction]:
        members = getattr(self.classifier, "members", (self.classifier,))
        embedders = [member.embedder for member in members]
        with embedders[0].bar(len(images), "predicting", "images", leave=False) as bar:
            for block in ImageStream(images, embedders, bar=bar):
                sound = [index for index in range(len(block.images)) if index not in block.bad]
                chances = [
                    member.predict_proba(rows[sound, 0])
                    for member, rows in zip(members, block.rows, strict=True)
                    if sound
                ]
                answers = iter(
                    self.classifier.best(np.mean(chances, axis=0), top_k) if sound else ()
                )
                for index, image in enumerate(block.images):
                    if index in block.bad:
                        yield Prediction(image.name, problem=block.bad[index].reason)
                    else:
                        best = tuple(next(answers))
                        yield Prediction(image.name, best, unsure=best[0][1] < min_probability)

"""What images are taken for, with nothing but a run folder and an encoder."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptboost.data import LabelledImage, find_images
from promptboost.data.decode import BadImage
from promptboost.encoders.stream import ImageStream
from promptboost.errors import DataError, RunError
from promptboost.model.classifier import PromptClassifier, check_share, load
from promptboost.model.head import mean_proba
from promptboost.progress import Progress, no_progress, stage
from promptboost.run.run_folder import RunFolder


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
        progress: Progress = no_progress,
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
            yield from self.answers(
                listing.images, top_k, min_probability, total=len(listing.images)
            )

    def answers(
        self,
        images: Iterable[LabelledImage | BadImage],
        top_k: int = 1,
        min_probability: float = 0.0,
        *,
        total: int | None = None,
    ) -> Iterator[Prediction]:
        """Answer for images in their order, those that could not be found included."""
        order: deque[BadImage | None] = deque()  # what has been taken, and has no answer yet

        def sound() -> Iterator[LabelledImage]:
            for image in images:
                if isinstance(image, BadImage):
                    order.append(image)
                else:
                    order.append(None)
                    yield image

        def bad_ones() -> Iterator[Prediction]:
            while order and (bad := order[0]) is not None:
                order.popleft()
                yield Prediction(bad.path, problem=bad.reason)

        for answer in self._answers(sound(), top_k, min_probability, total):
            yield from bad_ones()
            order.popleft()
            yield answer
        yield from bad_ones()

    def _answers(
        self,
        images: Iterable[LabelledImage],
        top_k: int,
        min_probability: float,
        total: int | None,
    ) -> Iterator[Prediction]:
        embedders, heads = self.classifier.embedders, self.classifier.heads
        with stage(embedders[0].progress, "predicting", total) as advance:
            for block in ImageStream(images, embedders, advance=advance):
                sound = [index for index in range(len(block.images)) if index not in block.bad]
                chances = mean_proba(heads, [rows[sound, 0] for rows in block.rows])
                answers = iter(self.classifier.best(chances, top_k))
                for index, image in enumerate(block.images):
                    if index in block.bad:
                        yield Prediction(image.id, problem=block.bad[index].reason)
                    else:
                        best = tuple(next(answers))
                        yield Prediction(image.id, best, unsure=best[0][1] < min_probability)


def answer_record(answer: Prediction, asked: bool) -> dict[str, Any]:
    """Return what a program reads; with a least probability, nothing is `predicted` below it."""
    top = [{"class": name, "probability": chance} for name, chance in answer.best]
    best: dict[str, Any] = top[0] if top else {"class": None, "probability": None}
    record = {
        "picture": answer.image,
        "predicted": None if answer.unsure else best["class"],
        "probability": best["probability"],
        "top": top,
        "problem": answer.problem,
    }
    return record | {"unsure": answer.unsure, "best": best["class"]} if asked else record

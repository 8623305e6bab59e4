"""What images are taken for, with nothing but a run folder and an encoder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from promptboost.data import BadImage, Dataset, ImageError, LabelledImage, find_images
from promptboost.data.integrity import check_images
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError
from promptboost.model import PromptEnsemble
from promptboost.runs.heads import AnyHead, encoder_name, head_of
from promptboost.runs.run_folder import RunFolder

__all__ = ["Prediction", "Predictor"]


_AT_ONCE = 256


@dataclass(frozen=True)
class Prediction:
    """One image's answer.

    Attributes
    ----------
    image : str
        Its path.
    best : tuple of (str, float)
        Classes with their probabilities, most probable first; empty if it could not be read.
    problem : str or None
        Why it could not be read.
    """

    image: str
    best: tuple[tuple[str, float], ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Predictor:
    """A run that is ready to look at images."""

    head: AnyHead
    embedder: Embedder

    @classmethod
    def open(
        cls,
        run: Path,
        *,
        encoder: str | None = None,
        cache: bool = True,
        progress: bool = True,
        device: str | None = None,
    ) -> "Predictor":
        """Load a run with the encoder it was fitted on, or with another."""
        folder = RunFolder(run)
        folder.check_readable()
        ensemble = PromptEnsemble.load(folder.ensemble_path)
        name = encoder_name(ensemble, encoder)
        embedder = Embedder.open(name, cache=cache, progress=progress, device=device)
        return cls(head_of(folder, ensemble, embedder), embedder)

    def predict(self, paths: Sequence[str | Path], top_k: int = 1) -> Iterator[Prediction]:
        """Answer for each image in turn; folders stand for all images below them.

        An image that cannot be read has an answer that says so.

        Raises
        ------
        DataError
            If there is nothing to look at.
        """
        listing = find_images(paths)
        if not listing.images and not listing.bad:
            raise DataError(f"there are no images in {', '.join(map(str, paths))}")
        for bad in listing.bad:
            yield Prediction(bad.path, problem=bad.reason)
        images = iter(listing.images)
        while part := list(islice(images, _AT_ONCE)):
            yield from self._answers(part, top_k)

    def _answers(self, images: list[LabelledImage], top_k: int) -> Iterator[Prediction]:
        rows, bad = self._rows(images)
        chances = iter(self.head.predict_proba(rows, self.embedder.encoder.logit_scale))
        for image in images:
            if image.name in bad:
                yield Prediction(image.name, problem=bad[image.name])
                continue
            row = next(chances)
            order = np.argsort(-row, kind="stable")[:top_k]
            best = tuple((self.head.class_names[k], float(row[k])) for k in map(int, order))
            yield Prediction(image.name, best)

    def _rows(self, images: list[LabelledImage]) -> tuple[UnitRows, dict[str, str]]:
        """Embed the images that can be read; name the others."""
        bad = _reasons(check_images(images, progress=False))
        while True:
            sound = tuple(image for image in images if image.name not in bad)
            try:
                return self.embedder.originals(Dataset(sound, ())), bad
            except ImageError as error:  # changed since it was checked
                bad[error.bad.path] = error.bad.reason


def _reasons(bad: Iterable[BadImage]) -> dict[str, str]:
    return {item.path: item.reason for item in bad}

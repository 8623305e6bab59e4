"""What pictures are taken for, with nothing but a run folder and an encoder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from promptboost.data import BadPicture, Dataset, Picture, PictureError, find_pictures
from promptboost.data.check import check_pictures
from promptboost.encoders.base import UnitRows
from promptboost.ensemble import PromptEnsemble
from promptboost.errors import DataError
from promptboost.runs.embedding import Embedder
from promptboost.runs.folder import RunFolder
from promptboost.runs.heads import AnyHead, encoder_name, head_of

__all__ = ["Prediction", "Predictor"]

_AT_ONCE = 256


@dataclass(frozen=True)
class Prediction:
    """One picture's answer.

    Attributes
    ----------
    picture : str
        Its path.
    best : tuple of (str, float)
        Classes with their probabilities, most probable first; empty if it could not be read.
    problem : str or None
        Why it could not be read.
    """

    picture: str
    best: tuple[tuple[str, float], ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Predictor:
    """A run that is ready to look at pictures."""

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
        """Answer for each picture in turn; folders stand for all pictures below them.

        A picture that cannot be read has an answer that says so.

        Raises
        ------
        DataError
            If there is nothing to look at.
        """
        listing = find_pictures(paths)
        if not listing.pictures and not listing.bad:
            raise DataError(f"there are no pictures in {', '.join(map(str, paths))}")
        for bad in listing.bad:
            yield Prediction(bad.path, problem=bad.reason)
        pictures = iter(listing.pictures)
        while part := list(islice(pictures, _AT_ONCE)):
            yield from self._answers(part, top_k)

    def _answers(self, pictures: list[Picture], top_k: int) -> Iterator[Prediction]:
        rows, bad = self._rows(pictures)
        chances = iter(self.head.predict_proba(rows, self.embedder.encoder.logit_scale))
        for picture in pictures:
            if picture.name in bad:
                yield Prediction(picture.name, problem=bad[picture.name])
                continue
            row = next(chances)
            order = np.argsort(-row, kind="stable")[:top_k]
            best = tuple((self.head.class_names[k], float(row[k])) for k in map(int, order))
            yield Prediction(picture.name, best)

    def _rows(self, pictures: list[Picture]) -> tuple[UnitRows, dict[str, str]]:
        """Embed the pictures that can be read; name the others."""
        bad = _reasons(check_pictures(pictures, progress=False))
        while True:
            sound = tuple(picture for picture in pictures if picture.name not in bad)
            try:
                return self.embedder.originals(Dataset(sound, ())), bad
            except PictureError as error:  # changed since it was checked
                bad[error.bad.path] = error.bad.reason


def _reasons(bad: Iterable[BadPicture]) -> dict[str, str]:
    return {item.path: item.reason for item in bad}

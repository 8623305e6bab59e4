"""The four image sets, embedded by both encoders, and the pools to choose from.

Everything comes from the embedding store after the first time. Emoji come with promptboost; the
photographs are folders of 60 images a class, and their sentences released description files.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import GridPool, Shots
from promptboost.boosting.grid import to_grid
from promptboost.data import draw_shots, load_data
from promptboost.encoders.embedder import Embedder
from promptboost.pool import PLAIN_TEMPLATE, build_pool, emoji_descriptions, fill
from promptboost.pool.descriptions import sentences_by_class
from promptboost.training import PoolTexts

Floats = NDArray[np.float32]
PoolKind = Literal["templates", "full", "one", "all"]

SETS = ("emoji", "pets", "textures", "scenes")
VIEWS = 8
SOURCE, TARGET = "conse:lite0", "conse:lite2"

_FOLDERS = {"pets": "oxford_pets", "textures": "dtd10", "scenes": "intel_scenes"}
_SENTENCES = {"pets": "oxford_pets", "textures": "dtd"}


@dataclass(frozen=True)
class Places:
    """Where the photographs and the released sentences are, and what embeds them."""

    images: Path
    pools: Path
    source: Embedder
    target: Embedder


@dataclass(frozen=True)
class Draw:
    """One few-shot task: what is learnt from, and what is measured on with either encoder."""

    rows: Floats
    labels: NDArray[np.int64]
    held_out: Floats
    held_out_target: Floats
    held_out_labels: NDArray[np.int64]

    def shots(self, views: int = VIEWS) -> Shots:
        """Put what is learnt from on the grid."""
        return Shots.from_rows(
            self.rows[:, 0], self.labels, self.rows[:, 1 : views + 1] if views else None
        )


@dataclass(frozen=True)
class Words:
    """A pool, its rows for the source encoder, and rows of chosen texts for the target encoder."""

    texts: PoolTexts
    grid: GridPool
    places: Places

    def class_rows(self, banks: Sequence[dict[str, int]]) -> tuple[Floats, Floats]:
        """Return the mean row of each bank, for both encoders."""
        wanted = sorted({text for bank in banks for text in bank})
        found = []
        for embedder in (self.places.source, self.places.target):
            rows = embedder.texts(wanted)
            means = [
                np.average(rows(list(bank)), axis=0, weights=list(bank.values())) for bank in banks
            ]
            found.append(np.stack(means).astype(np.float32))
        return found[0], found[1]


class ImageSet:
    """One set of images."""

    def __init__(self, name: str, places: Places) -> None:
        self.name, self._places = name, places
        source = "emoji" if name == "emoji" else str(places.images / _FOLDERS[name])
        data = load_data(source, check=False)
        self.class_names = data.class_names
        self._split = "test" in data.splits
        learn = data.of_split("train") if self._split else data
        self._labels = learn.labels
        self._rows = places.source.images(learn, views=VIEWS)
        measured = data.of_split("test") if self._split else data
        self._measured = places.source.originals(measured)
        self._measured_target = places.target.originals(measured)
        self._measured_labels = measured.labels
        self._words: dict[PoolKind, Words] = {}

    def draw(self, shots: int, seed: int) -> Draw:
        """Draw the images to learn from; classes with fewer give what they have."""
        chosen = draw_shots(self._labels, shots, seed=seed, fewer="allow")
        kept = np.arange(len(self._measured_labels))
        if not self._split:
            kept = np.setdiff1d(kept, chosen)
        return Draw(
            self._rows[chosen],
            self._labels[chosen],
            self._measured[kept],
            self._measured_target[kept],
            self._measured_labels[kept],
        )

    def words(self, kind: PoolKind = "full") -> Words:
        """Return a pool: templates alone, with sentences, or with template and sentence joined."""
        if kind not in self._words:
            pool = build_pool(
                self.class_names,
                descriptions=None if kind == "templates" else self._sentences,
                concatenate=kind if kind in ("one", "all") else "none",
            )
            texts = PoolTexts.of(pool)
            encode = self._places.source.texts
            grid = texts.embed(lambda wanted: to_grid(encode(wanted)(wanted)))
            self._words[kind] = Words(texts, grid, self._places)
        return self._words[kind]

    @property
    def has_sentences(self) -> bool:
        """Whether there is more than templates."""
        return self._sentences is not None

    @cached_property
    def zero_shot(self) -> tuple[Floats, Floats]:
        """Class rows of the plain template, for both encoders."""
        texts = [fill(PLAIN_TEMPLATE, name) for name in self.class_names]
        return self.words("templates").class_rows([{text: 1} for text in texts])

    @cached_property
    def _sentences(self) -> dict[str, list[str]] | None:
        if self.name == "emoji":
            return {name: list(lines) for name, lines in emoji_descriptions().items()}
        if self.name not in _SENTENCES:
            return None
        together: dict[str, list[str]] = {name: [] for name in self.class_names}
        folder = self._places.pools / _SENTENCES[self.name] / "category_description"
        for file in sorted(folder.glob("*.json")):
            raw = json.loads(file.read_text())
            kept = {name: [s for s in lines if s.strip()] for name, lines in raw.items()}
            for name, lines in sentences_by_class(self.class_names, kept)[0].items():
                together[name] += lines
        return together

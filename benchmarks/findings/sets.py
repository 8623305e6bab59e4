"""The four image sets, embedded by both encoders, and the pools to choose from.

Everything comes from the embedding store after the first time. Emoji come with promptboost; the
photographs are folders of 60 images a class, and their sentences released description files.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import GridPool, Shots
from promptboost.compare.cells import CompareRequest, Key
from promptboost.compare.comparison import Comparison, FewShotTask
from promptboost.config import FitConfig
from promptboost.pool import PromptPool, build_pool
from promptboost.pool.pool import sentences_by_class
from promptboost.pool.readers import emoji_descriptions
from promptboost.training import PoolTexts

Floats = NDArray[np.float32]

SETS = ("emoji", "pets", "textures", "scenes")
VIEWS = 8

_FOLDERS = {"pets": "oxford_pets", "textures": "dtd10", "scenes": "intel_scenes"}
_SENTENCES = {"pets": "oxford_pets", "textures": "dtd"}


@dataclass(frozen=True)
class Places:
    """Where the photographs and the released sentences are, and which draws are asked for."""

    images: Path
    pools: Path
    shots: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: tuple[int, ...] = (1, 2, 3)
    encoder: str = "conse:lite0"
    target: str = "conse:lite2"


@dataclass(frozen=True)
class Words:
    """A pool, its texts, and their rows for the source encoder."""

    pool: PromptPool
    texts: PoolTexts
    grid: GridPool


class ImageSet:
    """One set of images, drawn and embedded as ``promptboost compare`` does it."""

    def __init__(self, name: str, places: Places) -> None:
        self.name, self._places = name, places
        source = "emoji" if name == "emoji" else str(places.images / _FOLDERS[name])
        self.comparison = Comparison(
            CompareRequest(
                source,
                Path(),
                shots=places.shots,
                seeds=places.seeds,
                encoder=places.encoder,
                transfers=(places.target,),
                words=FitConfig(views=VIEWS),
            )
        )
        self.encoder, self.target = self.comparison.encoder, self.comparison.targets[0]
        self.class_names = self.comparison.data.class_names

    def draw(self, key: Key) -> FewShotTask:
        """Draw the images to learn from; classes with fewer give what they have."""
        return self.comparison.draw(int(key["shots"]), int(key["seed"]))

    def rows(self, draw: FewShotTask) -> Floats:
        """Embed what is learned from: images and their crops, shape (n, 1 + V, D)."""
        return draw.learn.images.views(self.encoder)

    def shots(self, draw: FewShotTask) -> Shots:
        """Put what is learned from on the grid."""
        rows = self.rows(draw)
        return Shots.from_rows(rows[:, 0], draw.learn.labels, rows[:, 1:])

    @cached_property
    def words(self) -> Words:
        """The pool."""
        pool = build_pool(self.class_names, descriptions=self.sentences)
        texts = PoolTexts.of(pool)
        return Words(pool, texts, texts.embed(self.encoder.encode_texts))

    @cached_property
    def sentences(self) -> dict[str, list[str]] | None:
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

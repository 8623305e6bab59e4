"""The four image sets, embedded by both encoders, and the pools to choose from.

Everything comes from the embedding store after the first time. Emoji come with promptboost; the
photographs are folders of 60 images a class, and their sentences released description files.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import GridPool, Shots
from promptboost.config import FitConfig
from promptboost.encoders.embedder import EmbeddedTexts
from promptboost.evaluation.cells import CompareRequest, Key, Result
from promptboost.evaluation.compare import Cell
from promptboost.evaluation.measures import accuracy
from promptboost.evaluation.world import World
from promptboost.methods import make_method
from promptboost.pool import PromptPool, build_pool, emoji_descriptions
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
    """Where the photographs and the released sentences are, and which draws are asked for."""

    images: Path
    pools: Path
    shots: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: tuple[int, ...] = (1, 2, 3)


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
    """A pool, its rows for the source encoder, and rows of chosen texts for both encoders."""

    pool: PromptPool
    texts: PoolTexts
    grid: GridPool
    world: World

    def rows_of(self, texts: Iterable[str]) -> list[EmbeddedTexts]:
        """Embed texts with the source encoder and with the target encoder."""
        distinct = list(dict.fromkeys(texts))
        position = {text: i for i, text in enumerate(distinct)}
        encoders = (self.world.encoder, *self.world.targets)
        return [EmbeddedTexts(position, encoder.encode_texts(distinct)) for encoder in encoders]

    def class_rows(self, banks: Sequence[dict[str, int]]) -> tuple[Floats, Floats]:
        """Return the mean row of each bank, for both encoders."""
        source, target = (
            np.stack(
                [
                    np.average(rows(list(bank)), axis=0, weights=list(bank.values()))
                    for bank in banks
                ]
            ).astype(np.float32)
            for rows in self.rows_of(sorted({text for bank in banks for text in bank}))
        )
        return source, target


class ImageSet:
    """One set of images, drawn and embedded as ``promptboost compare`` does it."""

    def __init__(self, name: str, places: Places) -> None:
        self.name, self._places = name, places
        source = "emoji" if name == "emoji" else str(places.images / _FOLDERS[name])
        self.world = World(
            CompareRequest(
                source,
                Path(),
                shots=places.shots,
                seeds=places.seeds,
                encoder=SOURCE,
                transfers=(TARGET,),
                words=FitConfig(views=VIEWS),
            )
        )
        self.class_names = self.world.data.class_names
        self._words: dict[PoolKind, Words] = {}

    def draw(self, shots: int, seed: int) -> Draw:
        """Draw the images to learn from; classes with fewer give what they have."""
        draw, source = self.world.draw(shots, seed), self.world.encoder
        [target] = self.world.targets
        return Draw(
            draw.learn.images.views(source),
            draw.learn.labels,
            draw.held_out.rows(source),
            draw.held_out.rows(target),
            draw.labels,
        )

    def measure(self, spelling: str, key: Key, kind: PoolKind = "full") -> Result:
        """Fit a method by its name on one draw; measure it, and its text on the target encoder."""
        shots, seed = int(key["shots"]), int(key["seed"])
        cell = Cell(spelling, make_method(spelling), shots, seed)
        draw, pool, encoder = (
            self.world.draw(shots, seed),
            self.words(kind).pool,
            self.world.encoder,
        )
        fitted = cell.seeded().fit(draw.learn, pool, encoder)
        result: Result = {
            "source": 100 * (accuracy(fitted.predict(draw.held_out), draw.labels) or 0.0)
        }
        learnt = fitted.predict(draw.learn.images)
        if (banks := fitted.words()) is not None:
            [target] = self.world.targets
            moved = fitted.transfer(target).predict(draw.held_out)
            result["target"] = 100 * (accuracy(moved, draw.labels) or 0.0)
            result["learnt"] = 100 * (accuracy(learnt, draw.learn.labels) or 0.0)
            result["distinct"] = float(np.mean([len(bank) for bank in banks]))
        return result

    def words(self, kind: PoolKind = "full") -> Words:
        """Return a pool: templates alone, with sentences, or with template and sentence joined."""
        if kind not in self._words:
            pool = build_pool(
                self.class_names,
                descriptions=None if kind == "templates" else self._sentences,
                concatenate=kind if kind in ("one", "all") else "none",
            )
            texts = PoolTexts.of(pool)
            grid = texts.embed(self.world.encoder.encode_texts)
            self._words[kind] = Words(pool, texts, grid, self.world)
        return self._words[kind]

    @property
    def has_sentences(self) -> bool:
        """Whether there is more than templates."""
        return self._sentences is not None

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

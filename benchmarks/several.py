"""What learning on several encoders at once brings: on those learnt on, and on one never seen.

Run ``python -m benchmarks.several [DATA ...] [--shots 4 --shots 8] [--seeds 3] [--views 8]``. The
encoders are the four ConSE combinations of two image nets and two sentence encoders (MiniLM L6 and L3), and
two that read with the bare token table of MiniLM (T), on which nothing is learnt: encoders of another kind.
Each row is learnt on those it names, one, two or three, and measured on all; a figure in brackets is of
an encoder that the row was not learnt on. Figures are means over draws, in per cent. The greedy composer
runs the paper's preset for ten rounds.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.config import PRESETS, FitConfig
from promptboost.data.shots import load_task
from promptboost.encoders.conse.conse import CONSE_VARIANTS, ConseEncoder
from promptboost.encoders.conse.sentences import SentenceEncoder
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.runtime import fingerprint
from promptboost.encoders.store import EmbeddingStore
from promptboost.evaluation.baselines import zero_shot_head
from promptboost.evaluation.world import pool_for
from promptboost.model.head_files import AnyHead, embed_ensemble
from promptboost.runs.learned import embed_task, learn


class TokenTable(ConseEncoder):
    """Reads a text as the mean of its tokens, whatever their order."""

    def __init__(self, name: str) -> None:
        variant = CONSE_VARIANTS[name]
        super().__init__(variant, variant.temperature, variant.template, None)
        self.id += "-tokens"
        self.fingerprint = fingerprint({"kind": "token table", "of": self.fingerprint})

    @cached_property
    def _sentences(self) -> SentenceEncoder:
        from safetensors.numpy import load_file

        table = load_file(self._text_file)["embeddings.word_embeddings.weight"]
        return SentenceEncoder(
            self._vocabulary, lambda ids, _: table[ids], self.context_length, self.dim
        )


#: Those that read with another encoder's token table are never learnt on.
UNSEEN = {"conse:lite0-tokens": "lite0", "conse:lite2-l6-tokens": "lite2-l6"}
ENCODERS = ("conse:lite0", "conse:lite2-l6", "conse:lite0-l3", "conse:lite2", *UNSEEN)
#: Learnt on: one, two of different kinds, and three.
SETTINGS = (
    ("conse:lite0",),
    ("conse:lite2",),
    ("conse:lite0", "conse:lite2"),
    ("conse:lite0", "conse:lite2", "conse:lite0-l3"),
)
_TITLES = {
    "conse:lite0": "lite0/L6",
    "conse:lite2-l6": "lite2/L6",
    "conse:lite0-l3": "lite0/L3",
    "conse:lite2": "lite2/L3",
    "conse:lite0-tokens": "lite0/T",
    "conse:lite2-l6-tokens": "lite2/T",
}


@dataclass(frozen=True)
class Figure:
    """The accuracy of one fit on one encoder; `learnt_on` is empty for zero-shot."""

    data: str
    shots: int
    seed: int
    composer: str
    learnt_on: tuple[str, ...]
    encoder: str
    accuracy: float


def measure(
    data: str,
    shots: int,
    seed: int,
    composer: str,
    embedders: dict[str, Embedder],
    others: Mapping[str, Any],
) -> list[Figure]:
    """Fit on each setting with one draw, and measure on all encoders."""
    preset = PRESETS["paper" if composer == "greedy" else "default"]
    config = FitConfig(shots=shots, seed=seed, residual=False, **others).merged(preset)
    if composer == "greedy":
        config = config.merged({"rounds": 10})
    task = load_task(data, config, progress=False)
    pool = pool_for(config, data, task.class_names)
    held_out = {name: one.originals(task.held_out) for name, one in embedders.items()}
    labels = task.held_out.labels

    def accuracies(learnt_on: tuple[str, ...], head_on: Mapping[str, AnyHead]) -> list[Figure]:
        return [
            Figure(
                *(data, shots, seed, composer, learnt_on, name),
                float(np.mean(head.predict_index(held_out[name]) == labels)),
            )
            for name, head in head_on.items()
        ]

    figures = accuracies(
        (), {name: zero_shot_head(task.class_names, one) for name, one in embedders.items()}
    )
    for names in SETTINGS:
        first, *further = (embedders[name] for name in names)
        settings = config.merged({"encoder": names})
        rows = embed_task(task, pool, settings, first, further=further)
        text = learn(task, rows, settings, first).ensemble
        heads = {name: embed_ensemble(text, one) for name, one in embedders.items()}
        figures += accuracies(names, heads)
    return figures


def opened(name: str) -> Embedder:
    """Return an encoder of the table with the user's store."""
    if name in UNSEEN:
        return Embedder(TokenTable(UNSEEN[name]), EmbeddingStore(), progress=False)
    return Embedder.open(name, progress=False)


def table(figures: Iterable[Figure]) -> str:
    """Return the means over draws as Markdown."""
    cells: dict[tuple[str, int, str, tuple[str, ...]], dict[str, list[float]]] = {}
    for item in figures:
        key = item.data, item.shots, item.composer, item.learnt_on
        cells.setdefault(key, defaultdict(list))[item.encoder].append(item.accuracy)
    lines = [
        f"| data | shots | composer | learnt on | {' | '.join(map(_TITLES.get, ENCODERS))} |",  # type: ignore[arg-type]
        f"|---|--:|---|---|{'--:|' * len(ENCODERS)}",
    ]
    for (data, shots, composer, learnt_on), by_encoder in cells.items():
        names = " + ".join(_TITLES[name] for name in learnt_on) or "zero-shot"
        shown = []
        for name in ENCODERS:
            mean = f"{100 * np.mean(by_encoder[name]):.1f}"
            shown.append(mean if name in learnt_on or not learnt_on else f"({mean})")
        lines.append(f"| {data} | {shots} | {composer} | {names} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table; with ``--json`` every figure by itself."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", nargs="*", default=["emoji"])
    parser.add_argument("--shots", type=int, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--composer", action="append", choices=["gradient", "greedy"])
    parser.add_argument("--prompts", help="Sentences about the classes, as for fit.")
    parser.add_argument("--views", type=int, default=8, help="Crops of each image.")
    parser.add_argument("--json", type=Path, help="Where to write every figure by itself.")
    asked = parser.parse_args(arguments)
    embedders = {name: opened(name) for name in ENCODERS}
    others = {"prompts": asked.prompts, "views": asked.views}
    figures: list[Figure] = []
    for data in asked.data:
        for composer in asked.composer or ["gradient"]:
            for shots in asked.shots or [4, 8]:
                for seed in range(asked.seeds):
                    figures += measure(data, shots, seed, composer, embedders, others)
                    print(f"{data}, {shots} shots, draw {seed}", file=sys.stderr, flush=True)
                if asked.json:
                    asked.json.write_text(json.dumps([vars(item) for item in figures]))
    print(table(figures))


if __name__ == "__main__":
    main()

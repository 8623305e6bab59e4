"""Measure how readable banks are, how much their sentences matter, and the controls for content.

    python -m benchmarks.sentences emoji scenes=FOLDER pets=FOLDER textures=FOLDER -o DRAWS.jsonl \
        --prompts scenes=benchmarks/scenes.json pets=FILE textures=FILE

A row of the table is the mean over draws: distinct prompts per class, the share of the weight on
descriptions, the most templates of a class, the share of sentences whose removal lowers margins or raises
errors on cross-validated training images, and accuracies in percent, here / on another encoder: of text and
residual, zero-shot, of the text, and of its controls: descriptions of other classes, and random words.

Each draw is appended to DRAWS.jsonl; the same command measures only those that are missing.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.baselines import pool_heads
from promptboost.config import FitConfig
from promptboost.data.shots import load_task
from promptboost.data.source import DataSource
from promptboost.encoders.embedder import Embedder, members_of, open_embedder
from promptboost.model import PromptEnsemble
from promptboost.pool import PromptPool
from promptboost.run.controls import control_texts, measure_controls
from promptboost.run.fit import pool_for
from promptboost.run.influence import training_influences
from promptboost.run.results import EmbeddedTask
from promptboost.training.trainer import Trainer

#: The columns of the table: title, key, and key on the other encoder.
COLUMNS = (
    ("prompts per class", "prompts", ""),
    ("most templates", "templates", ""),
    ("weight on descriptions", "descriptions", ""),
    ("sentences that matter", "matter", ""),
    ("text + residual", "both", ""),
    ("zero-shot", "zero-shot", "moved zero-shot"),
    ("text", "text", "moved text"),
    ("swapped", "swapped", "moved swapped"),
    ("random words", "random", "moved random"),
)
_COUNTS = ("prompts", "templates")


def read_value(text: str) -> Any:
    """Return a number if it is one."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def bank_figures(ensemble: PromptEnsemble, pool: PromptPool) -> dict[str, float]:
    """Return the figures that are read from the banks."""
    prompts, shares, templates = [], [], []
    for name, filled in zip(pool.class_names, map(set, pool.template_texts()), strict=True):
        weights = ensemble.prompts(name)
        prompts.append(len(weights))
        shares.append(sum(weight for text, weight in weights.items() if text not in filled))
        templates.append(len(weights.keys() & filled))
    return {
        "prompts": float(np.mean(prompts)),
        "descriptions": float(np.mean(shares)),
        "templates": float(np.max(templates)),
    }


def measure(
    source: str, settings: FitConfig, encoder: Embedder, other: Embedder
) -> dict[str, float]:
    """Fit and return all figures of one draw."""
    data = DataSource.parse(source)
    task = load_task(data, settings)
    pool = pool_for(settings, data, task.class_names)
    embedded = EmbeddedTask.embed(task, pool, settings, encoder)
    examples, labels = embedded.examples(task), task.held_out.labels
    fitted = Trainer(settings).fit(examples, embedded.pool_rows, embedded.members)
    figures = bank_figures(fitted.ensemble, pool)
    figures["both"] = float(np.mean(fitted.head.predict_index(embedded.test) == labels))
    influences = training_influences(fitted.ensemble, examples, encoder, settings)
    if influences:  # with one image per class nothing can be set aside
        figures["matter"] = float(np.mean([i.matters for i in influences]))
    controls = control_texts(fitted.ensemble, pool, examples, encoder, settings)
    for prefix, embedder in (("", encoder), ("moved ", other)):
        rows = embedder.originals(task.held_out)
        zero_shot = pool_heads(pool, embedder)["zero-shot"]
        figures[f"{prefix}zero-shot"] = float(np.mean(zero_shot.predict_index(rows) == labels))
        text = fitted.ensemble.embed(embedder)
        figures[f"{prefix}text"] = float(np.mean(text.predict_index(rows) == labels))
        if result := measure_controls(fitted.ensemble, controls, embedder, rows, labels):
            figures[f"{prefix}swapped"] = result.swapped
            figures[f"{prefix}random"] = result.random_words
    return figures


def table(draws: Iterable[Mapping[str, Any]]) -> str:
    """Return the means as a Markdown table."""
    groups: dict[str, list[Mapping[str, float]]] = {}
    for draw in draws:
        label = f"{draw['set']} {draw['shots']} {draw['settings']}".strip()
        groups.setdefault(label, []).append(draw["figures"])
    columns = [c for c in COLUMNS if any(c[1] in d for group in groups.values() for d in group)]
    lines = [f"| | {' | '.join(c[0] for c in columns)} |", f"|---|{'--:|' * len(columns)}"]
    for label, group in groups.items():

        def cell(key: str, group: Sequence[Mapping[str, float]] = group) -> str:
            values = [figures[key] for figures in group if key in figures]
            factor = 1 if key in _COUNTS else 100
            return f"{factor * np.mean(values):.1f}" if values else "–"

        cells = [cell(key) + (f" / {cell(moved)}" if moved else "") for _, key, moved in columns]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of every setting."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="+", help="emoji, a folder, or NAME=FOLDER")
    parser.add_argument("--prompts", nargs="*", default=(), help="NAME=FILE")
    parser.add_argument("--shots", nargs="+", type=int, default=(1, 2, 4, 8, 16))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--settings", nargs="+", default=("",), help="such as copies=32,spread=0.5")
    parser.add_argument("--encoder", default="conse:lite0")
    parser.add_argument("--other", default="conse:lite2")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSONL file of the draws")
    options = parser.parse_args(arguments)
    sources = {text.partition("=")[0]: text.rpartition("=")[2] for text in options.data}
    prompts = dict(text.split("=", 1) for text in options.prompts)
    encoder, other = (
        members_of(open_embedder((name,), cache=True))[0]
        for name in (options.encoder, options.other)
    )
    lines = options.output.read_text().splitlines() if options.output.exists() else []
    draws = {(d["set"], d["shots"], d["settings"], d["seed"]): d for d in map(json.loads, lines)}
    wanted = [
        (name, shots, settings, seed)
        for name in sources
        for shots in options.shots
        for settings in options.settings
        for seed in range(options.seeds)
    ]
    for key in wanted:
        if key in draws:
            continue
        name, shots, settings, seed = key
        values = dict(pair.split("=", 1) for pair in settings.split(",") if pair)
        config = FitConfig(
            encoder=options.encoder,
            shots=shots,
            seed=seed,
            prompts=prompts.get(name),
            **{k: read_value(value) for k, value in values.items()},
        )
        figures = measure(sources[name], config, encoder, other)
        draws[key] = dict(zip(("set", "shots", "settings", "seed"), key, strict=True))
        draws[key]["figures"] = figures
        with options.output.open("a") as file:
            file.write(json.dumps(draws[key]) + "\n")
        print(*key, figures, file=sys.stderr, flush=True)
    print(table(draws[key] for key in wanted))


if __name__ == "__main__":
    main()

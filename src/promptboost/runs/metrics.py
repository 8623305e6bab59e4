"""``metrics.json``: everything that was measured."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.config import FitConfig
from promptboost.data.shots import Task, image_ids
from promptboost.encoders.embedder import Embedder
from promptboost.errors import FileFormatError, RunError
from promptboost.evaluation.measures import confusions, per_class
from promptboost.files import write_text
from promptboost.model.provenance import Composed
from promptboost.runs.baselines import Guesses, Learned, Rows, chosen_sources, staged

__all__ = ["SCHEMA_VERSION", "hardest", "make_metrics", "read_metrics", "write_metrics"]

SCHEMA_VERSION = 1

_HARDEST = 24
_KEYS = ("task", "encoder", "pool", "methods", "staged", "per_class", "confusions", "transfers")


def make_metrics(
    task: Task,
    rows: Rows,
    learned: Learned,
    guesses: list[Guesses],
    settings: FitConfig,
    embedder: Embedder,
) -> dict[str, Any]:
    """Collect the figures of a fit; timing is added by whoever timed it."""
    encoder = embedder.encoder
    measured = task.measured
    by_name = {
        guess.name: guess.learn if task.kind is None else guess.held_out for guess in guesses
    }
    names = task.class_names
    return {
        "schema_version": SCHEMA_VERSION,
        "task": _task_facts(task, settings),
        "ensemble_fingerprint": learned.ensemble.fingerprint,
        "composed": asdict(Composed.of(learned.ensemble)),
        "encoder": {"id": encoder.id, "fingerprint": encoder.fingerprint, "dim": encoder.dim},
        "pool": {**_pool_facts(rows), "chosen": chosen_sources(rows.words.pool, learned.ensemble)},
        "methods": [guess.figures(task) for guess in guesses],
        "staged": staged(task, rows, learned),
        "per_class": per_class(
            names, measured.labels, {name: by_name[name] for name in ("zero_shot", "boosted")}
        ),
        "confusions": confusions(names, measured.labels, by_name["boosted"], image_ids(measured)),
        "hardest": hardest(task, learned, guesses[-1]),
        "transfers": [],
    }


def hardest(task: Task, learned: Learned, boosted: Guesses) -> list[dict[str, Any]]:
    """List the learning images by their weight at the end of the fit, heaviest first."""
    ids = image_ids(task.learn)
    weights = np.array([learned.ensemble.sample_weights[name] for name in ids])
    order = np.argsort(-weights, kind="stable")[:_HARDEST]
    return [
        {
            "picture": ids[i],
            "label": task.learn.images[i].label,
            "predicted": task.class_names[int(boosted.learn[i])],
            "weight": float(weights[i]),
        }
        for i in map(int, order)
    ]


def write_metrics(path: Path, metrics: dict[str, Any]) -> None:
    """Write the figures, whole or not at all."""
    write_text(path, json.dumps(metrics, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_metrics(path: str | Path) -> dict[str, Any]:
    """Read ``metrics.json``.

    Raises
    ------
    RunError
        If there is no such file.
    FileFormatError
        If it is not what a fit writes.
    """
    try:
        metrics = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist; finish the fit with --resume") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(metrics, dict) or metrics.get("schema_version") != SCHEMA_VERSION:
        raise FileFormatError(
            f"{path} is not a file of figures that this promptboost can read (schema_version "
            f"{SCHEMA_VERSION}); if it is newer, type: pip install -U promptboost"
        )
    if missing := [key for key in _KEYS if key not in metrics]:
        raise FileFormatError(f"{path} lacks {missing[0]!r}; make it again with --overwrite")
    return metrics


def _task_facts(task: Task, settings: FitConfig) -> dict[str, Any]:
    return {
        "data": task.source,
        "classes": len(task.class_names),
        "learn_pictures": len(task.learn),
        "held_out_pictures": len(task.held_out),
        "held_out": task.kind,
        "shots": settings.shots,
        "seed": settings.seed,
        "learn_digests": sorted({image.digest().hex() for image in task.learn.images}),
        "bad_pictures": [
            {"path": _text(bad.path), "reason": _text(bad.reason)} for bad in task.learn.bad
        ],
    }


def _pool_facts(rows: Rows) -> dict[str, Any]:
    pool = rows.words.pool
    statistics = pool.statistics()
    return {
        "fingerprint": pool.fingerprint,
        "templates": statistics["templates"],
        "prompts": statistics["prompts"],
        "statistics": statistics,
        "missing": list(pool.missing),
        "unused": list(pool.unused),
    }


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

"""The demonstration: emoji, a few of each class, and the text on a second encoder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.config import FitConfig
from promptboost.data.shots import load_task
from promptboost.encoders.embedder import Embedder
from promptboost.model.classifier import embed_ensemble
from promptboost.runs.baselines import compare, embed_task, learn, pool_for
from promptboost.runs.fit import FitRequest, fit_run
from promptboost.runs.folder import RunFolder
from promptboost.runs.preflight import check_place, check_store
from promptboost.runs.transfer import measure_transfer, transfer_run

__all__ = ["COLUMNS", "run_demo"]

SHOTS = (1, 2, 4, 8)
SEEDS = (1, 2, 3)
SOURCE, TARGET = "conse:lite0", "conse:lite2"

#: What a row holds beside ``shots``: mean accuracies, the last two on the second encoder.
COLUMNS = (
    *("zero_shot", "template_mean", "pool_mean", "probe", "boosted"),
    *("target_zero_shot", "target_boosted"),
)


def run_demo(
    folder: Path,
    *,
    data: str = "emoji",
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = SEEDS,
    encoders: tuple[str, str] = (SOURCE, TARGET),
    settings: FitConfig | None = None,
    cache: bool = True,
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Fit at several numbers of shots and seeds, transfer each, and keep one run with its report.

    Parameters
    ----------
    folder : Path
        Where the run of most shots and the first seed is kept; one that is there is replaced.
    data, shots, seeds, encoders, settings
        What to do; the defaults are the demonstration.
    cache, progress, say
        See :func:`~promptboost.runs.fit.fit_run`.

    Returns
    -------
    dict
        ``rows``, one for each number of shots, with mean accuracies over the seeds; and where the
        run and its report are.
    """
    base = (settings or FitConfig()).merged({"encoder": encoders[0]})
    run = RunFolder(folder)
    run.check_free(overwrite=True, resume=False)
    check_place(run)
    if cache:
        check_store()
    source, target = (Embedder.open(name, cache=cache, progress=progress) for name in encoders)
    rows = []
    for number in shots:
        say(f"{number} shot{'s' if number > 1 else ''} of each class …")
        lines = [
            _one_fit(data, base.merged({"shots": number, "seed": seed}), source, target)
            for seed in seeds
        ]
        means = {name: float(np.mean([line[name] for line in lines])) for name in COLUMNS}
        rows.append({"shots": number, **means})
    kept = base.merged({"shots": shots[-1], "seed": seeds[0]})
    fit_run(FitRequest(data, folder, kept, overwrite=True, cache=cache, progress=progress))
    transfer_run(folder, encoders[1], cache=cache, progress=progress)
    from promptboost.report import write_card, write_report

    report = write_report(folder)
    write_card(folder)
    return {
        "rows": rows,
        "data": data,
        "encoders": list(encoders),
        "seeds": list(seeds),
        "run": str(folder),
        "report": str(report),
    }


def _one_fit(
    data: str, settings: FitConfig, source: Embedder, target: Embedder
) -> dict[str, float | None]:
    """Fit in memory, and give the accuracies on both encoders."""
    task = load_task(data, settings, progress=source.progress)
    pool = pool_for(settings, data, task.class_names)
    rows = embed_task(task, pool, settings, source)
    learned = learn(task, rows, settings, source)
    guesses = compare(task, rows, learned, seed=settings.seed)
    found = {guess.name: guess.figures(task)["accuracy"] for guess in guesses}
    head = embed_ensemble(learned.ensemble, target)
    moved = measure_transfer(head, pool, task.held_out, target, task.class_names)
    return {**found, **{f"target_{name}": value for name, value in moved.items()}}

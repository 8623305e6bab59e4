"""The demonstration: emoji, a few of each class, and the text on a second encoder."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from promptboost.config import FitConfig
from promptboost.errors import RunError
from promptboost.evaluation.cells import CompareRequest
from promptboost.evaluation.compare import compare
from promptboost.runs.evaluate import transfer_run
from promptboost.runs.fit import FitRequest, fit_run
from promptboost.runs.preflight import check_place, usable_store
from promptboost.runs.run_folder import RunFolder

SHOTS = (1, 2, 4, 8)
SEEDS = (1, 2, 3)
SOURCE, TARGET = "conse:lite0", "conse:lite2"

# What a row holds beside ``shots``: the method, and whether it is measured on the second encoder.
_COLUMNS = {
    "zero_shot": ("zero-shot", False),
    "template_mean": ("zero-shot-80", False),
    "pool_mean": ("pool-mean", False),
    "probe": ("logistic", False),
    "text": ("promptboost?residual=false", False),
    "boosted": ("promptboost", False),
    "target_zero_shot": ("zero-shot", True),
    "target_boosted": ("promptboost", True),
}

#: The same by name: mean accuracies, the last two on the second encoder.
COLUMNS = tuple(_COLUMNS)


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
    finish: tuple[Callable[[Path], object], ...] = (),
) -> dict[str, Any]:
    """Compare at several numbers of shots and seeds, and keep one run with its report.

    Kept in `folder`, where one that is there is replaced, is the run of most shots and the first seed.
    """
    base = (settings or FitConfig()).merged({"encoder": encoders[0]})
    run = RunFolder(folder)
    run.check_free(overwrite=True, resume=False)
    check_place(run)
    cache = usable_store(cache, say)
    rows = _rows(data, tuple(shots), tuple(seeds), encoders, base, cache, progress, say)
    kept = base.merged({"shots": shots[-1], "seed": seeds[0]})
    results = fit_run(
        FitRequest(
            data, folder, kept, overwrite=True, cache=cache, progress=progress, finish=finish
        )
    )
    for line in results.overlap.lines() if results.overlap else ():
        say(line)
    transfer_run(folder, encoders[1], cache=cache, progress=progress, finish=finish)
    return {
        "rows": rows,
        "data": data,
        "encoders": list(encoders),
        "seeds": list(seeds),
        "overlap": msgspec.to_builtins(results.overlap),
        "run": str(folder),
        "report": str(folder / "report.html"),
    }


def _rows(
    data: str,
    shots: tuple[int, ...],
    seeds: tuple[int, ...],
    encoders: tuple[str, str],
    settings: FitConfig,
    cache: bool,
    progress: bool,
    say: Callable[[str], None],
) -> list[dict[str, float]]:
    """Compare all methods on both encoders; what needs images of its own stays on the first."""
    ours = _spelled(settings)
    names = {method: method for method, _ in _COLUMNS.values()}
    names["promptboost"] = ours
    names["promptboost?residual=false"] = _spelled(settings.merged({"residual": False}))
    say(f"{', '.join(map(str, shots))} shots of each class, {len(seeds)} draws of each …")
    with tempfile.TemporaryDirectory(prefix="promptboost-") as place:
        done = compare(
            CompareRequest(
                data,
                Path(place),
                tuple(names.values()),
                shots,
                seeds,
                encoders[0],
                encoders[1:],
                settings,
                cache,
                progress,
                refit=False,
                timed=False,
            )
        )
    if done.failed:
        raise RunError(f"the demonstration could not be finished: {done.failed[0]}")
    figures: dict[tuple[str, int, bool], list[float]] = {}
    for line in done.lines:
        key = line["method"], line["shots"], line["on"] != line["encoder"]
        figures.setdefault(key, []).append(line["accuracy"])
    return [
        {
            "shots": number,
            **{
                column: float(np.mean(figures[names[method], number, moved]))
                for column, (method, moved) in _COLUMNS.items()
            },
        }
        for number in shots
    ]


def _spelled(settings: FitConfig) -> str:
    """Spell the method that fits as the settings ask."""
    fields = ("composer", "rounds", "views_per_round", "max_copies", "logit_scale", "temperature")
    usual = FitConfig()
    changed = [
        f"{name}={str(value).lower()}"
        for name in (*fields, "residual")
        if (value := getattr(settings, name)) != getattr(usual, name)
    ]
    return "promptboost" + "?" * bool(changed) + "&".join(changed)

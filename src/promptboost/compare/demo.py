"""The demonstration: emoji, a few of each class, and the text learned on one encoder and on two."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from promptboost.compare.cells import CompareRequest
from promptboost.compare.compare import compare
from promptboost.config import FitConfig
from promptboost.errors import RunError
from promptboost.progress import Progress, no_progress
from promptboost.run.fit import FitRequest, fit_run
from promptboost.run.preflight import check_place, usable_store
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import transfer_run

SHOTS = (1, 2, 4, 8)
SEEDS = (1, 2, 3)
SOURCE, TARGET = "conse:lite0", "conse:lite2"
#: Most shots, and crops of each image, to learn on both encoders: the second one looks at all of them, too.
MOST_ON_BOTH, VIEWS_ON_BOTH = 4, 4

# Columns besides ``shots``: the method, the measure, and whether it is of the second encoder.
_ON_ONE = {
    "zero_shot": ("zero-shot", "accuracy", False),
    "template_mean": ("zero-shot-80", "accuracy", False),
    "pool_mean": ("pool-mean", "accuracy", False),
    "probe": ("logistic", "accuracy", False),
    "text": ("promptboost", "text_accuracy", False),
    "boosted": ("promptboost", "accuracy", False),
    "target_zero_shot": ("zero-shot", "accuracy", True),
    "target_boosted": ("promptboost", "accuracy", True),
}
# The same of what is learned on both encoders.
_ON_BOTH = {
    "both_text": ("promptboost", "text_accuracy", False),
    "both_boosted": ("promptboost", "accuracy", False),
    "target_both": ("promptboost", "accuracy", True),
}

#: All by name: mean accuracies, None where there is none; those that begin with target are on the
#: second encoder, where the text alone answers.
COLUMNS = (*_ON_ONE, *_ON_BOTH)


def run_demo(
    folder: Path,
    *,
    data: str = "emoji",
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = SEEDS,
    encoders: tuple[str, str] = (SOURCE, TARGET),
    settings: FitConfig | None = None,
    cache: bool = True,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda _: None,
    finish: tuple[Callable[[Path], object], ...] = (),
) -> dict[str, Any]:
    """Compare at several numbers of shots and seeds, and keep one run with its report.

    Kept in `folder`, where one that is there is replaced, is the run of most shots and the first seed.
    Learned on both encoders is only up to :data:`MOST_ON_BOTH` shots, and from :data:`VIEWS_ON_BOTH` crops.
    """
    base = (settings or FitConfig()).merged({"encoder": encoders[0]})
    run = RunFolder(folder)
    run.check_free(overwrite=True, resume=False)
    check_place(run)
    cache = usable_store(cache, say)
    request = CompareRequest(
        data,
        folder,
        shots=tuple(shots),
        seeds=tuple(seeds),
        encoder=encoders[0],
        transfers=encoders[1:],
        words=base,
        cache=cache,
        progress=progress,
        refit=False,
        timed=False,
    )
    rows = _rows(request, say)
    kept = base.merged({"shots": shots[-1], "seed": seeds[0]})
    results = fit_run(
        FitRequest(
            data, folder, kept, overwrite=True, cache=cache, progress=progress, finish=finish
        )
    )
    for line in results.overlap.lines() if results.overlap else ():
        say(line)
    # The table is about the text; a residual would have the second encoder see all crops of all shots.
    transfer_run(folder, encoders[1], text_only=True, cache=cache, progress=progress, finish=finish)
    return {
        "rows": rows,
        "data": data,
        "encoders": list(encoders),
        "seeds": list(seeds),
        "overlap": msgspec.to_builtins(results.overlap),
        "run": str(folder),
        "report": str(folder / "report.html"),
    }


def _rows(request: CompareRequest, say: Callable[[str], None]) -> list[dict[str, float | None]]:
    """Compare all methods on both encoders; what needs images of its own stays on the first."""
    shots, draws = ", ".join(map(str, request.shots)), len(request.seeds)
    say(f"{shots} shots of each class, {draws} draws of each …")
    figures = _figures(request, _ON_ONE)
    few = tuple(number for number in request.shots if number <= MOST_ON_BOTH)
    if few:
        say(f"the same on both encoders at once, up to {max(few)} shots …")
        # By itself, so that the second encoder sees the images of these few shots only.
        views = min(request.words.views, max(VIEWS_ON_BOTH, request.words.views_per_round or 0))
        both = replace(request, shots=few, words=request.words.merged({"views": views}))
        figures |= _figures(both, _ON_BOTH, also=request.transfers)
    return [
        {"shots": number, **{column: figures.get((column, number)) for column in COLUMNS}}
        for number in request.shots
    ]


def _figures(
    request: CompareRequest, columns: Mapping[str, tuple[str, str, bool]], also: Sequence[str] = ()
) -> dict[tuple[str, int], float]:
    """Return the mean accuracy of each column at each number of shots."""
    names = {method: method for method, _, _ in columns.values()}
    names["promptboost"] = _spelled(request.words, also)
    with tempfile.TemporaryDirectory(prefix="promptboost-") as place:
        done = compare(replace(request, out=Path(place), methods=tuple(names.values())))
    if done.failed:
        raise RunError(f"the demonstration could not be finished: {done.failed[0]}")
    lines: dict[tuple[str, int, bool], list[Mapping[str, Any]]] = {}
    for line in done.lines:
        key = line["method"], line["shots"], line["on"] != line["encoder"]
        lines.setdefault(key, []).append(line)
    return {
        (column, number): float(
            np.mean([line[figure] for line in lines[names[method], number, moved]])
        )
        for column, (method, figure, moved) in columns.items()
        for number in request.shots
    }


def _spelled(settings: FitConfig, also: Sequence[str] = ()) -> str:
    """Spell the method that fits as the settings ask, perhaps on further encoders."""
    fields = ("composer", "rounds", "views_per_round", "max_copies", "logit_scale", "temperature")
    usual = FitConfig()
    changed = [
        f"{name}={str(value).lower()}"
        for name in (*fields, "residual")
        if (value := getattr(settings, name)) != getattr(usual, name)
    ]
    changed += [f"also={'+'.join(also)}"] if also else []
    return "promptboost" + "?" * bool(changed) + "&".join(changed)

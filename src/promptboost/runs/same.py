"""Whether a run that is there was asked for in the same way, so that it can go on."""

from pathlib import Path
from typing import Any

from promptboost.data.benchmarks import benchmark_source
from promptboost.errors import RunError
from promptboost.runs.embedding import Embedder
from promptboost.runs.folder import RunFolder
from promptboost.runs.settings import PRESETS, FitSettings
from promptboost.runs.task import Task

__all__ = ["check_same_content", "check_same_request", "lasting_settings", "lasting_source"]

_START_AGAIN = "add --overwrite instead of --resume to start again"


def lasting_source(source: str) -> str:
    """Give a source in words that hold in any folder; the word ``emoji`` does already.

    Examples
    --------
    >>> lasting_source("emoji")
    'emoji'
    >>> Path(lasting_source(".")).is_absolute()
    True
    """
    if (benchmark := benchmark_source(source)) is not None:
        return str(benchmark.absolute())
    return (
        source if source == "emoji" or not Path(source).exists() else str(Path(source).absolute())
    )


def lasting_settings(settings: FitSettings) -> FitSettings:
    """Give settings whose file of sentences is found from any folder."""
    if settings.prompts is None or not Path(settings.prompts).exists():
        return settings
    return settings.merged({"prompts": str(Path(settings.prompts).absolute())})


def check_same_request(run: RunFolder, source: str, settings: FitSettings) -> None:
    """Refuse to go on with other settings or another source, and say which."""
    now, before = settings.to_table(), run.settings.to_table()
    for name in (*now, *(name for name in before if name not in now)):
        if now.get(name) != before.get(name):
            option = f"--{name.replace('_', '-')}"
            if name in PRESETS["paper"]:
                option += " or --preset"
            raise RunError(
                f"{name} is {_said(now.get(name))}, but the run in {run.path} was made with "
                f"{_said(before.get(name))}; leave {option} out to go on with that run, or "
                f"{_START_AGAIN}"
            )
    if not _same_source(source, run.source):
        raise RunError(
            f"the pictures are {source}, but the run in {run.path} was made with {run.source}; "
            f"to go on with that run, type: {run.resume_hint}"
        )


def check_same_content(run: RunFolder, task: Task, embedder: Embedder) -> None:
    """Refuse to go on with other pictures or weights than the run began with."""
    for table, name, now, what in (
        ("data", "learn_fingerprint", task.learn.fingerprint, "the pictures to learn from"),
        ("encoder", "fingerprint", embedder.encoder.fingerprint, "the encoder"),
    ):
        if run.tables.get(table, {}).get(name) != now:
            raise RunError(f"{what} changed since the run in {run.path} began; {_START_AGAIN}")


def _said(value: Any) -> str:
    return "none" if value is None else str(value)


def _same_source(one: str, other: str) -> bool:
    if "emoji" in (one, other):
        return one == other
    if benchmark_source(one) or benchmark_source(other):
        return lasting_source(one) == lasting_source(other)
    return Path(one).resolve() == Path(other).resolve()

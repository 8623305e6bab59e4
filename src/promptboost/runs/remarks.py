"""What people should know about their pictures and sentences before they read the figures."""

from collections import Counter
from collections.abc import Sequence

from promptboost.pool import PromptPool, Source, is_saved_pool, read_sources
from promptboost.runs.settings import FitSettings
from promptboost.runs.task import Task

__all__ = ["pool_remarks", "prompts_remarks", "task_remarks"]

_BAD_SHOWN = 10
_NAMES_SHOWN = 5


def task_remarks(task: Task, shots: int | None) -> list[str]:
    """Say which files were left out, which classes are short of pictures, and what is not held out."""
    bad = task.learn.bad
    lines = [f"left out {item}" for item in bad[:_BAD_SHOWN]]
    if len(bad) > _BAD_SHOWN:
        lines.append(f"… and {len(bad) - _BAD_SHOWN} more that cannot be used")
    if short := task.classes_short_of(shots):
        few = _some([f"{name} ({count})" for name, count in short.items()])
        lines.append(f"fewer than {shots} pictures to learn from: {few}")
    if task.kind is None:
        lines.append(
            "no picture is held out: figures are about the pictures learnt from, and flatter; "
            + _way_out(task)
        )
    return lines


def _way_out(task: Task) -> str:
    """Name a number of shots that would leave pictures of every class, or else of some."""
    counts = Counter(task.learn.labels.tolist()).values()
    shots = (min(counts) if min(counts) > 1 else max(counts)) // 2
    if not shots:
        return "there is one picture of each class, add some to measure on"
    return f"--shots {shots} would leave some to measure on"


def prompts_remarks(settings: FitSettings) -> list[str]:
    """Say which sentences of the file nobody can use; a saved pool has none of them."""
    if settings.prompts is None or is_saved_pool(settings.prompts):
        return []
    return [line for source in read_sources(settings.prompts) for line in _left_out(source)]


def _left_out(source: Source) -> list[str]:
    counts = {"blank": sum(source.blank.values()), "damaged": len(source.refused)}
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return [f"sentences left out of {source.path}: {said}"] if said else []


def pool_remarks(pool: PromptPool) -> list[str]:
    """Say what sentences are missing, and which belong to no class.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> pool_remarks(build_pool(["owl", "bat"], descriptions={"owl": ["round eyes"], "cow": ["moo"]}))
    ['no sentences are given for the class bat', 'sentences are given for what is no class: cow']
    """
    sources = set(pool.prompts_by_source)
    lines = []
    if sources == {"template"}:
        lines.append(
            "the pool has templates only; sentences that say how the classes look help "
            "(--prompts FILE)"
        )
    if pool.missing:
        lines.append(f"no sentences are given for the class {_some(pool.missing)}")
    if pool.unused:
        lines.append(f"sentences are given for what is no class: {_some(pool.unused)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + ", …" * (len(names) > _NAMES_SHOWN)

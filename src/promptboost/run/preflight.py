"""What people should know about their images and sentences before they read the figures."""

import contextlib
import errno
import os
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

from promptboost.config import PRESETS, FitConfig
from promptboost.data import DataSource
from promptboost.data.shots import Task
from promptboost.encoders.default import named_encoder
from promptboost.encoders.embedder import Embedder
from promptboost.errors import PoolError, RunError, StoreError
from promptboost.io import sweep
from promptboost.pool import PromptPool, Source, is_saved_pool, read_sources
from promptboost.pool.io import saved_templates
from promptboost.pool.names import is_wnid
from promptboost.run.run_folder import RunFolder


def check_writable(folder: Path) -> None:
    """Write a file into a folder, or into the first that is there above it, and remove it.

    Permissions alone do not tell: file systems can be full, or mounted for reading only.
    """
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    sweep(folder)
    probe = folder / f".promptboost-{secrets.token_hex(8)}.tmp"
    try:
        probe.write_bytes(b"probe")
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def check_store() -> None:
    """Raise unless vectors can be kept in the user's store."""
    from promptboost.encoders.store import EmbeddingStore

    root = EmbeddingStore().root
    try:
        check_writable(root)
    except OSError as error:
        raise StoreError(
            f"vectors cannot be kept in {root}: {_reason(error)}; set PROMPTBOOST_CACHE to a "
            "folder that can be written to"
        ) from error


def usable_store(wanted: bool, say: Callable[[str], None]) -> bool:
    """Return whether embeddings are kept: as asked, unless the store cannot be written."""
    try:
        if wanted:
            check_store()
        return wanted
    except StoreError as error:
        say(f"{error}. Going on without")
        return False


def check_place(run: RunFolder) -> None:
    """Raise unless a run can be written to its folder."""
    try:
        check_writable(run.path)
    except OSError as error:
        raise RunError(
            f"a run cannot be written to {run.path}: {_reason(error)}; choose another place"
        ) from error


def check_inputs(source: DataSource, settings: FitConfig) -> None:
    """Raise if the images or the sentences are not where they are said to be."""
    gone = source.path is not None and not source.path.exists()
    if gone or source.benchmark is not None:
        source.load(check=False)  # has the words for it, and decodes no image
    if settings.prompts is not None:
        _check_prompts(settings.prompts)


def _check_prompts(file: str) -> None:
    """Read sentences, or the first line of a pool; whether names meet is known with the classes."""
    if not is_saved_pool(file):
        read_sources(file)
    elif not saved_templates(file):
        raise PoolError(
            f"the pool {file} has no templates, and boosting starts from one; make it again with: "
            f"promptboost pool build {quote(file)} --classes DATA -o with-templates.jsonl"
        )


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


START_AGAIN = "add --overwrite instead of --resume to start again"


def lasting_settings(settings: FitConfig) -> FitConfig:
    """Return settings that name their encoders, and a file of sentences that any folder finds."""
    settings = settings.merged({"encoder": tuple(map(named_encoder, settings.encoders))})
    if settings.prompts is None or not Path(settings.prompts).exists():
        return settings
    return settings.merged({"prompts": str(Path(settings.prompts).absolute())})


def check_same_request(run: RunFolder, source: DataSource, settings: FitConfig) -> None:
    """Raise for other settings or another source than the run has; the message names which."""
    now, before = settings.to_table(), run.settings.to_table()
    for name in (*now, *(name for name in before if name not in now)):
        if now.get(name) != before.get(name):
            option = f"--{name.replace('_', '-')}"
            if name in PRESETS["paper"]:
                option += " or --preset"
            asked, made = now.get(name, "none"), before.get(name, "none")
            raise RunError(
                f"{name} is {asked}, but the run in {run.home} was made with {made}; leave {option} "
                f"out to go on with that run, or {START_AGAIN}"
            )
    if not _same_source(source, run.source):
        raise RunError(
            f"the images are {source}, but the run in {run.home} was made with {run.source}; "
            f"to go on with that run, type: {run.resume_hint}"
        )


def check_same_content(run: RunFolder, task: Task, embedder: Embedder) -> None:
    """Raise for other images or weights than the run began with."""
    for table, name, now, what in (
        ("data", "learn_fingerprint", task.learn.fingerprint, "the images to learn from"),
        ("encoder", "fingerprint", embedder.encoder.fingerprint, "the encoder"),
    ):
        if run.tables.get(table, {}).get(name) != now:
            raise RunError(f"{what} changed since the run in {run.home} began; {START_AGAIN}")


def _same_source(one: DataSource, other: DataSource) -> bool:
    if one.path and other.path and not (one.benchmark or other.benchmark):
        return one.path.resolve() == other.path.resolve()
    return str(one.lasting) == str(other.lasting)


_BAD_SHOWN = 10
_NAMES_SHOWN = 5


def task_remarks(task: Task, shots: int | None) -> list[str]:
    """Return which files were left out, which classes are short of images, and what is not held out."""
    bad = task.learn.bad
    lines = [f"left out {item}" for item in bad[:_BAD_SHOWN]]
    if len(bad) > _BAD_SHOWN:
        lines.append(f"… and {len(bad) - _BAD_SHOWN} more that cannot be used")
    if short := task.classes_short_of(shots):
        few = _some([f"{name} ({count})" for name, count in short.items()])
        lines.append(f"fewer than {shots} images to learn from: {few}")
    if task.kind is None:
        lines.append(
            "no image is held out: figures are about the images learnt from, and too good; "
            + _way_out(task)
        )
    return lines


def _way_out(task: Task) -> str:
    """Name a number of shots that would leave images of every class, or else of some."""
    counts = Counter(task.learn.labels.tolist()).values()
    shots = (min(counts) if min(counts) > 1 else max(counts)) // 2
    if not shots:
        return "there is one image of each class, add some to measure on"
    return f"--shots {shots} would leave some to measure on"


def prompts_remarks(settings: FitConfig) -> list[str]:
    """Return which sentences of the file nobody can use; a saved pool has none of them."""
    if settings.prompts is None or is_saved_pool(settings.prompts):
        return []
    return [line for source in read_sources(settings.prompts) for line in _left_out(source)]


def _left_out(source: Source) -> list[str]:
    counts = {"blank": sum(source.blank.values()), "damaged": len(source.refused)}
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return [f"sentences left out of {source.path}: {said}"] if said else []


def pool_remarks(pool: PromptPool) -> list[str]:
    """Return which names and sentences say nothing or are missing, and which belong to no class."""
    sources = set(pool.prompts_by_source)
    lines = []
    # The estimator refuses numbers. A folder that is called 0 may be meant, so it is told only.
    wordless = [n for n in pool.class_names if is_wnid(n) or not any(map(str.isalpha, n))]
    if wordless:
        lines.append(
            f"class names that are no words, though prompts say them, as in “a photo of a {wordless[0]}.”: "
            f"{_some(wordless)}; rename the folders or labels"
        )
    if sources == {"template"}:
        lines.append(
            "the pool has templates only; sentences that say how the classes look help "
            "(--prompts FILE)"
        )
    if pool.missing:
        classes = "class" if len(pool.missing) == 1 else "classes"
        lines.append(f"no sentences are given for the {classes} {_some(pool.missing)}")
    if pool.unused:
        lines.append(f"sentences are given for what is no class: {_some(pool.unused)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + ", …" * (len(names) > _NAMES_SHOWN)

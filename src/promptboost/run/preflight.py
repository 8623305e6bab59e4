"""Checks before a fit, its pool, and remarks on its images and sentences."""

import contextlib
import errno
import os
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

from promptboost.config import AUTO, PRESETS, FitConfig
from promptboost.data.shots import Task
from promptboost.data.source import DataSource
from promptboost.encoders.default import chosen_encoder
from promptboost.encoders.embedder import Embedder
from promptboost.errors import PoolError, RunError, SettingError, StoreError
from promptboost.io import sweep
from promptboost.pool import PromptPool, build_pool, read_pool
from promptboost.pool.io import is_saved_pool, saved_templates
from promptboost.pool.readers import emoji_descriptions, read_sources
from promptboost.pool.templates import clip_templates
from promptboost.pool.text import is_wnid
from promptboost.run.run_folder import RunFolder


def check_writable(folder: Path) -> None:
    """Write and remove a file in a folder, or in the first existing folder above it.

    Permissions are not enough: file systems can be full, or mounted read-only.
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
    """Raise unless the embedding cache can be written."""
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
    """Return whether to use the embedding cache: not if it cannot be written."""
    try:
        if wanted:
            check_store()
        return wanted
    except StoreError as error:
        say(f"{error}. Going on without")
        return False


def check_place(run: RunFolder) -> None:
    """Raise unless the folder of a run can be written."""
    try:
        check_writable(run.path)
    except OSError as error:
        raise RunError(
            f"a run cannot be written to {run.path}: {_reason(error)}; choose another place"
        ) from error


def check_inputs(source: DataSource, settings: FitConfig) -> None:
    """Raise if the images or the sentences are missing; class names are matched later."""
    missing = source.path is not None and not source.path.exists()
    if missing or source.benchmark is not None:
        source.load(check=False)  # raises a detailed error, and decodes no image
    file = settings.prompts
    if file is not None and not is_saved_pool(file):
        read_sources(file)
    elif file is not None and not saved_templates(file):
        raise PoolError(
            f"the pool {file} has no templates, and boosting starts from one; make it again with: "
            f"promptboost pool build {quote(file)} --classes DATA -o with-templates.jsonl"
        )


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


START_AGAIN = "add --overwrite instead of --resume to start again"


def lasting_settings(settings: FitConfig) -> FitConfig:
    """Return settings with the full names of encoders and the absolute path of the sentences."""
    names = (chosen_encoder().name if name == AUTO else name for name in settings.encoders)
    settings = settings.merged({"encoder": tuple(names)})
    if settings.prompts is None or not Path(settings.prompts).exists():
        return settings
    return settings.merged({"prompts": str(Path(settings.prompts).absolute())})


def check_same_request(run: RunFolder, source: DataSource, settings: FitConfig) -> None:
    """Raise if settings or data differ from those of the run."""
    new, old = settings.to_table(), run.settings.to_table()
    for name in dict.fromkeys((*new, *old)):
        if new.get(name) != old.get(name):
            option = f"--{name.replace('_', '-')}"
            if name in PRESETS["paper"]:
                option += " or --preset"
            raise RunError(
                f"{name} is {new.get(name, 'none')}, but the run in {run.home} was made with "
                f"{old.get(name, 'none')}; leave {option} out to go on with that run, or {START_AGAIN}"
            )
    if not _same_source(source, run.source):
        raise RunError(
            f"the images are {source}, but the run in {run.home} was made with {run.source}; "
            f"to go on with that run, type: {run.resume_hint}"
        )


def check_same_content(run: RunFolder, task: Task, embedder: Embedder) -> None:
    """Raise if training images or encoder weights differ from those of the run."""
    for table, name, now, what in (
        ("data", "learn_fingerprint", task.learn.fingerprint, "the training images"),
        ("encoder", "fingerprint", embedder.encoder.fingerprint, "the encoder"),
    ):
        if run.tables.get(table, {}).get(name) != now:
            raise RunError(f"{what} changed since the run in {run.home} began; {START_AGAIN}")


def _same_source(one: DataSource, other: DataSource) -> bool:
    if one.path and other.path and not (one.benchmark or other.benchmark):
        return one.path.resolve() == other.path.resolve()
    return str(one.lasting) == str(other.lasting)


def pool_for(settings: FitConfig, source: object, class_names: Sequence[str]) -> PromptPool:
    """Make the pool of a fit; the emoji come with sentences of their own.

    A saved pool is used as it is, templates and concatenations included.
    """
    if settings.prompts is not None and is_saved_pool(settings.prompts):
        _check_unset(settings)
        return read_pool(settings.prompts, class_names)
    templates = clip_templates() if settings.templates == "clip" else None
    if settings.prompts is not None:
        return read_pool(
            settings.prompts, class_names, templates=templates, concatenate=settings.concatenate
        )
    return build_pool(
        class_names,
        templates=templates,
        descriptions=emoji_descriptions() if str(source) == "emoji" else None,
        concatenate=settings.concatenate,
        source="descriptions:emoji",
    )


def _check_unset(settings: FitConfig) -> None:
    """Raise for settings that a saved pool already determines."""
    for name, default in (("templates", "own"), ("concatenate", "none")):
        if (value := getattr(settings, name)) != default:
            raise SettingError(
                f"{name} is {value!r}, but {settings.prompts} is a saved pool and has been made with "
                f"its own; leave {name} out, or make the pool again with: promptboost pool build … "
                f"--{name} {value} -o {Path(settings.prompts or '').name}"
            )


_BAD_SHOWN = 10
_NAMES_SHOWN = 5


def task_remarks(task: Task, shots: int | None) -> list[str]:
    """Return remarks on unreadable files, classes short of images, and missing held-out images."""
    bad = task.learn.bad
    lines = [f"left out {item}" for item in bad[:_BAD_SHOWN]]
    if len(bad) > _BAD_SHOWN:
        lines.append(f"… and {len(bad) - _BAD_SHOWN} more that cannot be used")
    if short := task.classes_short_of(shots):
        classes = _some([f"{name} ({count})" for name, count in short.items()])
        lines.append(f"fewer than {shots} training images: {classes}")
    if task.kind is None:
        # Half of the smallest class leaves test images of every class, else half of the largest of some.
        counts = Counter(task.learn.labels.tolist()).values()
        half = (min(counts) if min(counts) > 1 else max(counts)) // 2
        lines.append(
            "no image is held out: figures are those on the training images, and too good; "
            + (
                f"--shots {half} would leave some to measure on"
                if half
                else "there is one image of each class, add some to measure on"
            )
        )
    return lines


def prompts_remarks(settings: FitConfig) -> list[str]:
    """Return remarks on sentences that cannot be used; a saved pool has none."""
    if settings.prompts is None or is_saved_pool(settings.prompts):
        return []
    lines = []
    for source in read_sources(settings.prompts):
        counts = {"blank": sum(source.blank.values()), "damaged": len(source.skipped)}
        if reasons := ", ".join(f"{count} {reason}" for reason, count in counts.items() if count):
            lines.append(f"sentences left out of {source.path}: {reasons}")
    return lines


def pool_remarks(pool: PromptPool) -> list[str]:
    """Return remarks on class names without letters, and on missing or unused sentences."""
    lines = []
    # The estimator refuses numbers. A folder that is called 0 may be meant.
    wordless = [n for n in pool.class_names if is_wnid(n) or not any(map(str.isalpha, n))]
    if wordless:
        lines.append(
            f"class names that are no words, though prompts say them, as in “a photo of a {wordless[0]}.”: "
            f"{_some(wordless)}; rename the folders or labels"
        )
    if set(pool.prompts_by_source) == {"template"}:
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

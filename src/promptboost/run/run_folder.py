"""The files of a run, their states and locks."""

import contextlib
import errno
import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from promptboost.config import PRESETS, FitConfig
from promptboost.data.dataset import valid_text
from promptboost.data.source import DataSource
from promptboost.errors import (
    FileFormatError,
    InputError,
    RunError,
    SettingError,
    StoreError,
    command_name,
    place,
    without_place,
)
from promptboost.io import (
    HEADS,
    NEXT,
    SET,
    is_ours,
    json_text,
    load_toml,
    read_json,
    read_text,
    settle,
    stage,
    staged,
    steady,
    swap,
    sweep,
    unstage,
    write_text,
    writing,
)
from promptboost.model import PromptEnsemble
from promptboost.model.ensemble import ENSEMBLE_FILE, WEIGHTS_FILE
from promptboost.model.head import head_file

if TYPE_CHECKING:
    from promptboost.data.shots import Task
    from promptboost.encoders.embedder import Embedder
    from promptboost.run.results import Results


T = TypeVar("T")
TomlValue = str | int | float | bool | list[str] | list[float]


def write_toml(tables: Mapping[str, Mapping[str, TomlValue | None]]) -> str:
    """Write tables as TOML text, without values of None."""
    import tomli_w

    given = {
        table: {name: value for name, value in values.items() if value is not None}
        for table, values in tables.items()
    }
    return tomli_w.dumps(_rewritten(given, valid_text))


def public(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables of ``run.toml`` without the folders of paths, as runs are shared."""
    return {name: _rewritten(table, without_place) for name, table in tables.items()}


def _rewritten(value: Any, rewrite: Callable[[str], str]) -> Any:
    """Rewrite all strings in nested values."""
    if isinstance(value, Mapping):
        return {valid_text(name): _rewritten(inner, rewrite) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rewritten(element, rewrite) for element in value]
    return rewrite(value) if isinstance(value, str) else value


def read_record(path: Path, kind: type[T], version: int, again: str) -> T:
    """Read a JSON file of a run; `again` is how to make one of this version."""
    record = read_json(path, error=FileFormatError)
    try:
        return checked_record(record, kind, version, again)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None


def checked_record(record: object, kind: type[T], version: int, again: str) -> T:
    """Check a record that was read from JSON."""
    found = record.get("schema_version") if isinstance(record, Mapping) else None
    if found != version or isinstance(found, bool):
        is_newer = isinstance(found, int) and found > version
        hint = "upgrade with pip install -U promptboost" if is_newer else again
        raise FileFormatError(f"schema_version: must be {version}, not {found!r:.60}; {hint}")
    try:
        return msgspec.convert(record, kind)
    except msgspec.ValidationError as error:
        raise FileFormatError(str(error)) from None
    except UnicodeEncodeError as error:  # half of a character, as a name
        raise FileFormatError(f"a name is not valid Unicode text: {error.object!r:.60}") from None


State = Literal["missing", "unfinished", "finished", "other"]

# Files of a fit with a language model, written before the run begins.
_DESCRIBED = ("replies.jsonl", "descriptions.json", "descriptions.jsonl")
# Seconds: a fit waits for a short write, but not for another fit.
_PATIENCE_OF_A_FIT = 1.0


class _File:
    """The path of a file of a run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunFolder", owner: object) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    ensemble_path = _File(ENSEMBLE_FILE)  # the classifier as text
    weights_path = _File(WEIGHTS_FILE)  # of the training images, at the end of the fit
    settings_path = _File("run.toml")  # settings, data, encoder and versions of the fit
    metrics_path = _File("metrics.json")  # the results
    predictions_path = _File("predictions.csv")  # of the held-out images
    thumbnails_path = _File("thumbnails.json")  # of the images in the report
    explanations_path = _File("explanations.json")  # of the images in the report
    issues_path = _File("issues.json")  # suspicious images, if they were searched for
    partial_path = _File("partial.json")  # the rounds so far of an unfinished fit
    replies_path = _File("replies.jsonl")  # of a language model that described the classes

    @property
    def home(self) -> Path:
        """The folder of the run, also for the one inside that will replace it."""
        return self.path.parent if self.path.name == NEXT else self.path

    # --- one writer, many readers: see promptboost.io ------------------------------------

    @contextlib.contextmanager
    def writing(
        self, job: str, *, fit: bool = False, say: Callable[[str], None] | None = None
    ) -> Iterator[None]:
        """Be the only writer of this run."""
        patience = {"patience": _PATIENCE_OF_A_FIT} if fit else {}
        with writing(self.home, job, say=say, **patience):
            self.forget()
            yield

    def steady(self, read: Callable[[], T]) -> T:
        """Return what `read` returns, with all files of the same run."""

        def fresh() -> T:
            self.forget()
            return read()

        return steady(self.path, fresh)

    def forget(self) -> None:
        """Drop cached files."""
        for name in ("tables", "results", "source"):
            self.__dict__.pop(name, None)

    @property
    def unfinished(self) -> "RunFolder | None":
        """The fit to resume: one that will replace the run, or the run itself, or None."""
        settle(self.path)
        fresh = staged(self.path)
        if fresh is not None and RunFolder(fresh).settings_path.exists():
            return RunFolder(fresh)
        return self if self.state == "unfinished" else None

    def write(self, path: Path, text: str) -> None:
        """Write a file of the run; a symbolic link is replaced."""
        write_text(path, text, follow=False)

    def write_ensemble(self, ensemble: PromptEnsemble) -> None:
        """Write the ensemble and the weights of the images."""
        self.write(self.weights_path, json_text(ensemble.sample_weights))
        self.write(self.ensemble_path, ensemble.to_json())

    def head_path(self, encoder_id: str) -> Path:
        """Return the path of the head of an encoder."""
        return self.path / head_file(encoder_id)

    @property
    def state(self) -> State:
        """Whether there is a run here, and whether it is finished.

        The metrics are written last, and the partial rounds are removed after that, so that an
        incomplete run is never finished.
        """
        if self.metrics_path.exists() and not self.partial_path.exists():
            return "finished"
        if self.settings_path.exists():
            return "unfinished"
        if not self.path.exists():
            return "missing"
        files = {file.name for file in self.path.iterdir()} if self.path.is_dir() else None
        if files and _DESCRIBED[0] in files:
            files -= set(_DESCRIBED)
        empty = files is not None and all(map(is_ours, files))
        return "missing" if empty else "other"

    @property
    def is_complete(self) -> bool:
        """Whether the run is finished and has its ensemble."""
        return self.state == "finished" and self.ensemble_path.exists()

    def check_readable(self) -> None:
        """Raise unless there is an ensemble, which is all that predicting needs."""
        settle(self.path)
        if not self.ensemble_path.exists():
            self.check_finished()

    def check_finished(self) -> None:
        """Raise unless the run is finished."""
        settle(self.path)
        if self.is_complete:
            return
        if self.state == "unfinished":
            raise RunError(
                f"the run in {self.path} is not finished; to resume it, type: {self.resume_hint}"
            )
        self._check_not_saved()
        if self.path.exists():
            # Suggest no command that writes into it: it may be the folder of images.
            raise RunError(
                f"{self.path} is not a run folder, which {command_name()} fit makes. To make one, type: "
                f"{command_name()} fit DATA -o RUN"
            )
        raise RunError(
            f"{self.path} does not exist; to make one, type: {command_name()} fit DATA -o "
            f"{shlex.quote(str(self.path))}"
        )

    def _check_not_saved(self) -> None:
        """Raise if this is a classifier saved from Python, which has no images or results."""
        if self.ensemble_path.exists() and not self.settings_path.exists():
            raise RunError(
                f"{self.path} holds a classifier saved from Python, without the images and metrics of a "
                f"run. To make a run, type: {command_name()} fit DATA -o RUN"
            )

    @property
    def resume_hint(self) -> str:
        """The command that continues an unfinished fit."""
        return self.fit_command("-o", str(self.home), "--resume")

    def fit_command(self, *options: str) -> str:
        """Return a command that fits on the images of this run."""
        source = str(self.source)
        if not self.source.is_emoji and self.source.benchmark is None:
            source = place(source)
            if source == "emoji":  # a folder of that name, not the images within
                source = "./emoji"
        return f"{command_name()} fit {shlex.join([source, *options])}"

    def check_free(self, *, overwrite: bool, resume: bool) -> None:
        """Raise if a fit must not write here."""
        settle(self.path)
        state = self.state
        if state == "other":
            raise RunError(f"{self.path} exists and is not a run folder; choose another name")
        unfinished = self.unfinished is not None
        if overwrite or resume or (state == "missing" and not unfinished):
            return
        if not unfinished:
            raise RunError(
                f"there is a finished run in {self.path}; add --overwrite to replace it, or choose "
                "another name"
            )
        kind = "a finished run and an unfinished one to replace it" * (state == "finished")
        raise RunError(
            f"there is {kind or 'an unfinished run'} in {self.path}; add --resume to continue it, or "
            "--overwrite to start again"
        )

    def clear(self) -> None:
        """Delete the files of a run and no others, the settings last."""
        sweep(self.path)
        for file in self.path.glob(HEADS):
            file.unlink(missing_ok=True)
        for name in SET:
            (self.path / name).unlink(missing_ok=True)

    def begin(self, settings: FitConfig, about: dict[str, dict[str, Any]]) -> "RunFolder":
        """Write ``run.toml``: the settings, data, encoder and versions; return the folder to fill.

        It is a folder inside if there is a run already, which stays until :meth:`end`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if self.state in ("finished", "unfinished"):
            run = RunFolder(stage(self.path))
        else:
            run = self
            unstage(self.path)
            self.clear()
        run.write(run.settings_path, write_toml({"fit": settings.to_table(), **about}))
        return run

    def end(self) -> None:
        """Mark the run as finished, and replace the run around it, if any."""
        sweep(self.path)
        self.partial_path.unlink(missing_ok=True)
        if self.path != self.home:
            swap(self.home)

    @cached_property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables of ``run.toml``."""
        if not self.settings_path.exists():
            self._check_not_saved()
            raise RunError(f"{self.path} has no run.toml: it is not a run folder")
        text = read_text(self.settings_path, error=FileFormatError)
        tables = load_toml(text, str(self.settings_path))
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise FileFormatError(f"{self.settings_path}: {name} must be a table, [{name}]")
        return tables

    @property
    def ensemble(self) -> PromptEnsemble:
        """The fitted text."""
        return PromptEnsemble.load(self.ensemble_path)

    @cached_property
    def results(self) -> "Results":
        """The results, read once."""
        from promptboost.run.results import Results

        return Results.read(self.metrics_path)

    @property
    def settings(self) -> FitConfig:
        """The settings of the fit."""
        try:
            return FitConfig.from_table(self.tables.get("fit", {}))
        except SettingError as error:
            raise SettingError(f"{self.settings_path}: {error}") from error

    @property
    def learn_fingerprint(self) -> str | None:
        """The fingerprint of the training images, if ``run.toml`` has it."""
        return self.tables.get("data", {}).get("learn_fingerprint")

    @cached_property
    def source(self) -> DataSource:
        """The source of the images."""
        source = self.tables.get("data", {}).get("source", "DATA")
        if not isinstance(source, str):
            raise FileFormatError(f"{self.settings_path}: data.source must be a string")
        try:
            return DataSource.parse(source)
        except InputError as error:
            raise type(error)(f"{self.settings_path}: data.source: {error}") from error


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
    if problem := _unwritable(root):
        raise StoreError(
            f"embeddings cannot be stored in {root}: {problem}; set PROMPTBOOST_CACHE to a writable folder"
        )


def usable_store(wanted: bool, say: Callable[[str], None]) -> bool:
    """Return whether to use the embedding cache: not if it cannot be written."""
    try:
        if wanted:
            check_store()
        return wanted
    except StoreError as error:
        say(f"{error}. Continuing without it")
        return False


def check_place(run: RunFolder) -> None:
    """Raise unless the folder of a run can be written."""
    if problem := _unwritable(run.path):
        raise RunError(f"a run cannot be written to {run.path}: {problem}; choose another folder")


def _unwritable(folder: Path) -> str | None:
    """Return why a folder cannot be written."""
    try:
        check_writable(folder)
    except OSError as error:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return None


START_AGAIN = "add --overwrite instead of --resume to start again"


def lasting_settings(settings: FitConfig) -> FitConfig:
    """Return settings with the full names of encoders and the absolute path of the sentences."""
    from promptboost.encoders.registry import full_name

    settings = settings.merged({"encoder": tuple(map(full_name, settings.encoders))})
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
                f"{old.get(name, 'none')}; remove {option} to resume that run, or {START_AGAIN}"
            )
    if not _same_source(source, run.source):
        raise RunError(
            f"the images are {source}, but the run in {run.home} was made with {run.source}; "
            f"to resume that run, type: {run.resume_hint}"
        )


def check_same_content(run: RunFolder, task: "Task", embedder: "Embedder") -> None:
    """Raise if training images or encoder weights differ from those of the run."""
    for table, name, now, what in (
        ("data", "learn_fingerprint", task.learn.fingerprint, "the training images"),
        ("encoder", "fingerprint", embedder.encoder.fingerprint, "the encoder"),
    ):
        if run.tables.get(table, {}).get(name) != now:
            raise RunError(f"{what} changed since the run in {run.home} began; {START_AGAIN}")


def _same_source(first: DataSource, second: DataSource) -> bool:
    if first.path and second.path and not (first.benchmark or second.benchmark):
        return first.path.resolve() == second.path.resolve()
    return str(first.lasting) == str(second.lasting)

"""The files of a run, their states and locks."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from promptboost.config import FitConfig
from promptboost.data.source import DataSource
from promptboost.errors import (
    FileFormatError,
    InputError,
    RunError,
    SettingError,
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
from promptboost.model.head_files import head_file

if TYPE_CHECKING:
    from promptboost.run.results import Results

T = TypeVar("T")
TomlValue = str | int | float | bool | list[str] | list[float]


def write_toml(tables: Mapping[str, Mapping[str, TomlValue | None]]) -> str:
    """Write tables as TOML text, without values of None."""
    import tomli_w

    return tomli_w.dumps(
        {
            _sound(table): {_sound(k): _sound(v) for k, v in values.items() if v is not None}
            for table, values in tables.items()
        }
    )


def _sound(value: Any) -> Any:
    """Escape surrogates, which stand for the bytes of file names that are not UTF-8."""
    if isinstance(value, list):
        return [_sound(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def public(value: Any) -> Any:
    """Return values of ``run.toml`` without the folders of paths, as runs are shared."""
    if isinstance(value, Mapping):
        return {name: public(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [public(item) for item in value]
    return without_place(value) if isinstance(value, str) else value


State = Literal["missing", "unfinished", "finished", "other"]

# Seconds: a fit waits for a short write, but not for another fit.
_PATIENCE_OF_A_FIT = 1.0


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def ensemble_path(self) -> Path:
        """The ensemble: the classifier as text."""
        return self.path / ENSEMBLE_FILE

    @property
    def weights_path(self) -> Path:
        """The weights of the training images at the end of the fit."""
        return self.path / WEIGHTS_FILE

    @property
    def settings_path(self) -> Path:
        """Settings, data, encoder and versions of the fit."""
        return self.path / "run.toml"

    @property
    def metrics_path(self) -> Path:
        """The results."""
        return self.path / "metrics.json"

    @property
    def predictions_path(self) -> Path:
        """The prediction of each held-out image."""
        return self.path / "predictions.csv"

    @property
    def thumbnails_path(self) -> Path:
        """Thumbnails of the images in the report."""
        return self.path / "thumbnails.json"

    @property
    def explanations_path(self) -> Path:
        """Explanations of the images in the report."""
        return self.path / "explanations.json"

    @property
    def issues_path(self) -> Path:
        """Suspicious images, once they were searched for."""
        return self.path / "issues.json"

    @property
    def partial_path(self) -> Path:
        """The rounds so far of an unfinished fit."""
        return self.path / "partial.json"

    @property
    def home(self) -> Path:
        """The folder of the run, also while this one is to replace it."""
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

        def anew() -> T:
            self.forget()
            return read()

        return steady(self.path, anew)

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

        The measurements are written last and the rounds so far are removed after that, so that a
        run in which a file is missing never looks finished.
        """
        if self.metrics_path.exists() and not self.partial_path.exists():
            return "finished"
        if self.settings_path.exists():
            return "unfinished"
        if not self.path.exists():
            return "missing"
        empty = self.path.is_dir() and all(is_ours(file.name) for file in self.path.iterdir())
        return "missing" if empty else "other"

    def check_readable(self) -> None:
        """Raise unless there is an ensemble, which is all that predicting needs."""
        settle(self.path)
        if not self.ensemble_path.exists():
            self.check_finished()

    def check_finished(self) -> None:
        """Raise unless the run is finished."""
        settle(self.path)
        if self.state == "finished" and self.ensemble_path.exists():
            return
        if self.state == "unfinished":
            raise RunError(
                f"the run in {self.path} is not finished; to go on with it, type: {self.resume_hint}"
            )
        self._check_not_saved()
        if self.path.exists():
            # No command that would write into it: it may be the images, given in place of the run.
            raise RunError(
                f"{self.path} is no run folder; the first argument must be one that "
                f"{command_name()} fit made. To make one, type: "
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
                f"{self.path} holds a classifier that was saved from Python, without its images and "
                f"figures, which this needs. Make a run of them: {command_name()} fit DATA -o RUN"
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
            raise RunError(
                f"{self.path} is there already and is no run folder, so nothing in it is touched; "
                "choose another name"
            )
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
            f"there is {kind or 'an unfinished run'} in {self.path}; add --resume to go on with it, or "
            "--overwrite to start again"
        )

    def clear(self) -> None:
        """Delete the files of a run and no others, the settings last."""
        self.sweep()
        for file in self.path.glob(HEADS):
            file.unlink(missing_ok=True)
        for name in SET:
            (self.path / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete the temporary files of a killed process."""
        sweep(self.path)

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
        self.sweep()
        self.partial_path.unlink(missing_ok=True)
        if self.path != self.home:
            swap(self.home)

    @cached_property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables of ``run.toml``."""
        if not self.settings_path.exists():
            self._check_not_saved()
            raise RunError(f"{self.path} has no run.toml: it is no run folder")
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
            raise FileFormatError(f"{self.settings_path}: data.source must be a text")
        try:
            return DataSource.parse(source)
        except InputError as error:
            raise type(error)(f"{self.settings_path}: data.source: {error}") from error

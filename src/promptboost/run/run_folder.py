"""The run folder: what lies where, and whether a fit may write there."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from promptboost.config import FitConfig
from promptboost.data import DataSource
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
    """Write tables as TOML text; a value of None is left out, as TOML has no word for it."""
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
    """Return what ``run.toml`` says without the folders in which files lie: a run is passed on."""
    if isinstance(value, Mapping):
        return {name: public(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [public(item) for item in value]
    return without_place(value) if isinstance(value, str) else value


State = Literal["missing", "unfinished", "finished", "other"]

# A fit that finds another one does not wait for it; a short write it does.
_PATIENCE_OF_A_FIT = 1.0


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def ensemble_path(self) -> Path:
        """The classifier as text: the product."""
        return self.path / ENSEMBLE_FILE

    @property
    def weights_path(self) -> Path:
        """The weights of the images at the end of the fit."""
        return self.path / WEIGHTS_FILE

    @property
    def settings_path(self) -> Path:
        """What the fit was asked to do, on what, with what."""
        return self.path / "run.toml"

    @property
    def metrics_path(self) -> Path:
        """Everything that was measured."""
        return self.path / "metrics.json"

    @property
    def predictions_path(self) -> Path:
        """What each held-out image was taken for."""
        return self.path / "predictions.csv"

    @property
    def thumbnails_path(self) -> Path:
        """Small copies of the images the report shows."""
        return self.path / "thumbnails.json"

    @property
    def explanations_path(self) -> Path:
        """Why the images the report shows are answered as they are."""
        return self.path / "explanations.json"

    @property
    def issues_path(self) -> Path:
        """The images that somebody should look at; there once they were looked for."""
        return self.path / "issues.json"

    @property
    def partial_path(self) -> Path:
        """The rounds so far; there only while a fit is unfinished."""
        return self.path / "partial.json"

    @property
    def home(self) -> Path:
        """The folder as its user knows it, also where this run is to replace another."""
        return self.path.parent if self.path.name == NEXT else self.path

    # --- one writer, many readers: see promptboost.io ------------------------------------

    @contextlib.contextmanager
    def writing(
        self, job: str, *, fit: bool = False, say: Callable[[str], None] | None = None
    ) -> Iterator[None]:
        """Be the only writer of this run; a fit does not wait long for another."""
        patience = {"patience": _PATIENCE_OF_A_FIT} if fit else {}
        with writing(self.home, job, say=say, **patience):
            self.forget()
            yield

    def steady(self, read: Callable[[], T]) -> T:
        """Return what `read` reads in several files, all of one and the same run."""

        def anew() -> T:
            self.forget()
            return read()

        return steady(self.path, anew)

    def forget(self) -> None:
        """Read files again that were read before."""
        for name in ("tables", "results", "source"):
            self.__dict__.pop(name, None)

    @property
    def unfinished(self) -> "RunFolder | None":
        """The fit to go on with: one that is to replace the run, else the run itself, else None."""
        settle(self.path)
        fresh = staged(self.path)
        if fresh is not None and RunFolder(fresh).settings_path.exists():
            return RunFolder(fresh)
        return self if self.state == "unfinished" else None

    def write(self, path: Path, text: str) -> None:
        """Write a file of the run; a link in its place is replaced, as it could lead anywhere."""
        write_text(path, text, follow=False)

    def write_ensemble(self, ensemble: PromptEnsemble) -> None:
        """Write the text, and the weights of the images beside it."""
        self.write(self.weights_path, json_text(ensemble.sample_weights))
        self.write(self.ensemble_path, ensemble.to_json())

    def head_path(self, encoder_id: str) -> Path:
        """Return the place of the classifier embedded by one encoder."""
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
        """Raise unless there is a text to read; it is all that predicting needs."""
        settle(self.path)
        if not self.ensemble_path.exists():
            self.check_finished()

    def check_finished(self) -> None:
        """Raise unless a finished run is here; the message says what to do."""
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
        """Raise if a classifier was saved here from Python: it is used like a run, but knows no images."""
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
        """Return the command that fits on the images of this run."""
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
        """Delete the files of a run, and no others; the settings last, as they mark a run."""
        self.sweep()
        for file in self.path.glob(HEADS):
            file.unlink(missing_ok=True)
        for name in SET:
            (self.path / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what a killed process left half-written."""
        sweep(self.path)

    def begin(self, settings: FitConfig, about: dict[str, dict[str, Any]]) -> "RunFolder":
        """Write ``run.toml``: the settings, data, encoder and versions; return the folder to fill.

        That is this one, or one inside if a run is here already, which stays until the new one is
        finished: see :meth:`end`.
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
        """Count as finished: drop the rounds so far, and take the place of the run around, if any."""
        self.sweep()
        self.partial_path.unlink(missing_ok=True)
        if self.path != self.home:
            swap(self.home)

    @cached_property
    def tables(self) -> dict[str, dict[str, Any]]:
        """What ``run.toml`` says, table by table."""
        if not self.settings_path.exists():
            self._check_not_saved()
            raise RunError(f"{self.path} has no run.toml: it is no run folder")
        text = read_text(self.settings_path, error=FileFormatError)
        tables = load_toml(text, str(self.settings_path))
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise FileFormatError(f"{self.settings_path}: {name} must be a table, [{name}]")
        return tables

    @cached_property
    def results(self) -> "Results":
        """Everything that was measured, read once."""
        from promptboost.run.results import Results

        return Results.read(self.metrics_path)

    @property
    def settings(self) -> FitConfig:
        """What the fit was asked to do."""
        try:
            return FitConfig.from_table(self.tables.get("fit", {}))
        except SettingError as error:
            raise SettingError(f"{self.settings_path}: {error}") from error

    @property
    def learn_fingerprint(self) -> str | None:
        """The fingerprint of the images that were learnt from; None where ``run.toml`` has none."""
        return self.tables.get("data", {}).get("learn_fingerprint")

    @cached_property
    def source(self) -> DataSource:
        """Where the images were, in words that hold in any folder."""
        source = self.tables.get("data", {}).get("source", "DATA")
        if not isinstance(source, str):
            raise FileFormatError(f"{self.settings_path}: data.source must be a text")
        try:
            return DataSource.parse(source)
        except InputError as error:
            raise type(error)(f"{self.settings_path}: data.source: {error}") from error

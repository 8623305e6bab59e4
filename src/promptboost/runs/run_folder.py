"""The run folder: what lies where, and whether a fit may write there."""

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from promptboost.config import FitConfig
from promptboost.data import DataSource
from promptboost.errors import FileFormatError, RunError, command_name, place
from promptboost.files import write_text
from promptboost.model import PromptEnsemble
from promptboost.model.classifier import head_file
from promptboost.model.ensemble import ENSEMBLE_FILE, WEIGHTS_FILE
from promptboost.model.schema import json_text
from promptboost.runs.results import Results

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


State = Literal["missing", "unfinished", "finished", "other"]

_FILES = (
    *(ENSEMBLE_FILE, WEIGHTS_FILE, "metrics.json", "predictions.csv", "thumbnails.json"),
    *("report.html", "README.md", "partial.json", "run.toml"),
)
_HEADS, _TEMPORARY = "head-*.safetensors", ".promptboost-*.tmp"


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
    def partial_path(self) -> Path:
        """The rounds so far; there only while a fit is unfinished."""
        return self.path / "partial.json"

    def write_ensemble(self, ensemble: PromptEnsemble) -> None:
        """Write the text, and the weights of the images beside it."""
        write_text(self.weights_path, json_text(ensemble.sample_weights))
        ensemble.save(self.ensemble_path)

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
        empty = self.path.is_dir() and set(self.path.iterdir()) <= set(self.path.glob(_TEMPORARY))
        return "missing" if empty else "other"

    def check_readable(self) -> None:
        """Raise unless there is a text to read; it is all that predicting needs."""
        if not self.ensemble_path.exists():
            self.check_finished()

    def check_finished(self) -> None:
        """Raise unless a finished run is here; the message says what to do."""
        if self.state == "finished" and self.ensemble_path.exists():
            return
        if self.state == "unfinished":
            raise RunError(
                f"the run in {self.path} is not finished; to go on with it, type: {self.resume_hint}"
            )
        if self.path.exists():
            # No command that would write into it: it may be the images, given in place of the run.
            raise RunError(
                f"{self.path} is no run folder; name one that {command_name()} fit made, before "
                "anything else. To make one, type: "
                f"{command_name()} fit DATA -o RUN"
            )
        raise RunError(
            f"{self.path} does not exist; to make one, type: {command_name()} fit DATA -o {self.path}"
        )

    @property
    def resume_hint(self) -> str:
        """The command that continues an unfinished fit."""
        return self.fit_command("-o", str(self.path), "--resume")

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
        state = self.state
        if state == "other":
            raise RunError(
                f"{self.path} is there already and is no run folder, so nothing in it is touched; "
                "choose another name"
            )
        if state == "finished" and not (overwrite or resume):
            raise RunError(
                f"there is a finished run in {self.path}; add --overwrite to replace it, or choose "
                "another name"
            )
        if state == "unfinished" and not (overwrite or resume):
            raise RunError(
                f"there is an unfinished run in {self.path}; add --resume to go on with it, or "
                "--overwrite to start again"
            )

    def clear(self) -> None:
        """Delete the files of a run, and no others; the settings last, as they mark a run."""
        self.sweep()
        for file in self.path.glob(_HEADS):
            file.unlink(missing_ok=True)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what a killed process left half-written."""
        for file in self.path.glob(_TEMPORARY):
            file.unlink(missing_ok=True)

    def begin(self, settings: FitConfig, about: dict[str, dict[str, Any]]) -> None:
        """Clear the folder and write ``run.toml``: the settings, data, encoder and versions."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.clear()
        write_text(self.settings_path, write_toml({"fit": settings.to_table(), **about}))

    @cached_property
    def tables(self) -> dict[str, Any]:
        """What ``run.toml`` says."""
        try:
            return tomllib.loads(self.settings_path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError as error:
            raise RunError(f"{self.path} has no run.toml: it is no run folder") from error
        except ValueError as error:
            raise FileFormatError(f"{self.settings_path} is not TOML: {error}") from error

    @cached_property
    def results(self) -> Results:
        """Everything that was measured, read once."""
        return Results.read(self.metrics_path)

    @property
    def settings(self) -> FitConfig:
        """What the fit was asked to do."""
        return FitConfig.from_table(self.tables.get("fit", {}))

    @cached_property
    def source(self) -> DataSource:
        """Where the images were, in words that hold in any folder."""
        return DataSource.parse(str(self.tables.get("data", {}).get("source", "DATA")))

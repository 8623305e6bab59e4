"""The content of a run folder that a report needs."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from promptboost.errors import FileFormatError, RunError, SettingError
from promptboost.io import load_json, read_text
from promptboost.model import PromptEnsemble
from promptboost.model.explanation import Explanation
from promptboost.run.findings import Issues
from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder, public
from promptboost.run.versions import Lineage

# Only what is inside the file itself, and only pixels: an SVG can carry a script or an address.
_PIXELS = re.compile(r"data:image/(?:jpeg|png|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Run:
    """The content of a report or a card."""

    path: Path
    ensemble: PromptEnsemble
    results: Results
    settings: Mapping[str, Any]
    thumbnails: Mapping[str, str]
    explanations: Mapping[str, Explanation] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    issues: Issues | None = None  # None if they were not searched for

    @property
    def name(self) -> str:
        """The folder's name without its path: reports are passed on."""
        return RunFolder(self.path).home.resolve().name

    @property
    def shell_name(self) -> str:
        """The folder's name, quoted for a shell."""
        return shlex.quote(self.name)

    @property
    def is_conse(self) -> bool:
        """Whether the encoder is a ConSE one, not a CLIP model."""
        return self.results.encoder.id.startswith("conse:")

    @cached_property
    def is_edited(self) -> bool:
        """Whether the text was edited after the figures were measured."""
        measured = self.results.ensemble_fingerprint
        return measured is not None and not self.ensemble.has_fingerprint(measured)

    @property
    def measure_again(self) -> str:
        """The command that measures the text as it is now."""
        data = "--held-out" if self.lineage.edits else "DATA"
        return f"promptboost evaluate {self.shell_name} {data}"


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a run folder."""
    files = RunFolder(Path(path))
    return files.steady(lambda: _read_run(files))


def check_run(folder: Path) -> None:
    """Raise unless the folder has the files that a report needs."""
    if not folder.is_dir():
        raise RunError(
            f"{folder} is not a run folder. To make one, type: promptboost fit DATA -o {folder}"
        )
    for name in ("ensemble.json", "metrics.json"):
        if not (folder / name).is_file():
            raise RunError(
                f"{folder} has no {name}: the fit was not finished. To finish it, repeat the "
                "promptboost fit command with --resume"
            )


def _read_run(files: RunFolder) -> Run:
    check_run(files.path)
    ensemble = PromptEnsemble.load(files.ensemble_path)
    results = files.results
    return Run(
        path=files.path,
        ensemble=ensemble,
        # Earlier versions wrote down where the images lay.
        results=msgspec.structs.replace(results, task=results.task.public),
        settings=public(
            files.tables
            if files.settings_path.is_file()
            else {"settings": dict(ensemble.settings), "versions": dict(ensemble.versions)}
        ),
        thumbnails=_read_thumbnails(files.thumbnails_path),
        explanations=_read_explanations(files.explanations_path),
        lineage=Lineage.read(files.path),
        issues=Issues.read(files.issues_path) if files.issues_path.is_file() else None,
    )


def _read_object(file: Path, values: str) -> Mapping[str, Any]:
    """Read a JSON object; a missing file is an empty one."""
    if not file.is_file():
        return {}
    record = load_json(read_text(file, error=FileFormatError), str(file))
    if not isinstance(record, Mapping):
        raise FileFormatError(f"{file}: must be an object of {values}, not {record!r:.60}")
    return record


def _read_thumbnails(file: Path) -> dict[str, str]:
    return {
        image: url
        for image, url in _read_object(file, "images").items()
        if isinstance(url, str) and _PIXELS.fullmatch(url)
    }


def _read_explanations(file: Path) -> dict[str, Explanation]:
    record = _read_object(file, "explanations")
    try:
        return {image: Explanation.from_record(why) for image, why in record.items()}
    except (SettingError, AttributeError) as error:
        raise FileFormatError(f"{file}: {error}") from error

"""Versions: the runs beside one that were made of it by edits."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptboost.errors import PromptBoostError, SettingError
from promptboost.model import PromptEnsemble
from promptboost.model.change import Change
from promptboost.run.lineage import EDITS_FILE, Lineage


@dataclass(frozen=True)
class Version:
    """A run that was made of another by edits.

    Attributes
    ----------
    name : str
        Its folder's name.
    changes : tuple of Change
        What makes its text of the other's.
    date, reason : str
        When it was made, and why.
    accuracy : float, optional
        On the images that were shown, when it was made.
    """

    name: str
    changes: tuple[Change, ...]
    date: str
    reason: str
    accuracy: float | None

    def record(self) -> dict[str, Any]:
        """Return what is told about it."""
        return {
            "name": self.name,
            "date": self.date,
            "reason": self.reason,
            "accuracy": self.accuracy,
            "changes": len(self.changes),
        }


def find_versions(run: Path, ensemble: PromptEnsemble, lineage: Lineage) -> list[Version]:
    """Find the versions of a run with a certain text and lineage, the oldest first."""
    found = []
    for path in run.resolve().parent.glob(f"*/{EDITS_FILE}"):
        with suppress(PromptBoostError, OSError):
            other = Lineage.read(path.parent)
            edits = other.edits[len(lineage.edits) :]
            if edits and ensemble.has_fingerprint(other.parent_fingerprint):
                changes = tuple(change for edit in edits for change in edit.changes)
                last = edits[-1]
                version = Version(path.parent.name, changes, last.date, last.reason, last.after)
                found.append(version)
    return sorted(found, key=lambda one: (one.date, one.name))


def free_name(run: Path) -> str:
    """Return the name of the next version: ``run-v2``, then ``run-v3``."""
    home, number = run.resolve(), 2
    while (home.parent / f"{home.name}-v{number}").exists():
        number += 1
    return f"{home.name}-v{number}"


def version_folder(run: Path, name: str) -> Path:
    """Return the folder of a new version: beside the run, nowhere else, and not there yet."""
    if not re.fullmatch(r"[^\W_][\w .+-]{0,99}", name) or name.endswith((".", " ")):
        raise SettingError(
            f"{name!r} is no name for a version: letters, digits, and . _ - + between them"
        )
    folder = run.resolve().parent / name
    if folder.exists():
        raise SettingError(f"there is {name} already: versions stay as they are")
    return folder

"""Lineage of an edited run, and the versions of a run: the runs next to it that edits made of it."""

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from promptboost.baselines import Count, Share
from promptboost.errors import FileFormatError, PromptBoostError, SettingError
from promptboost.io import read_bytes, write_bytes
from promptboost.model import PromptEnsemble
from promptboost.model.edits import Change

#: The file of the lineage in a run folder.
EDITS_FILE = "edits.json"


class Edit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes made together, with author, reason and effect on held-out images."""

    changes: tuple[Change, ...]
    author: str
    date: str  # ISO 8601, UTC
    reason: str = ""
    images: Count = 0  # images it was measured on
    before: Share | None = None  # accuracy
    after: Share | None = None
    changed: Count = 0  # images with another answer


class Lineage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The edits since the fit, oldest first, and how often the held-out images were used.

    Repeated editing against the same images overfits to them. So every measurement is counted, and some
    of the images are reserved for a final one.
    """

    # the run that was edited: its folder's name, and the fingerprint of its ensemble
    parent: str | None = None
    parent_fingerprint: str | None = None
    edits: tuple[Edit, ...] = ()  # all since the fit
    looks: Count = 0  # measurements on the images for edits
    final_looks: Count = 0  # measurements on the reserved images

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes since the fit, oldest first."""
        return tuple(change for edit in self.edits for change in edit.changes)

    @classmethod
    def read(cls, run: Path) -> "Lineage":
        """Read the lineage of a run; it is empty if there is no file."""
        path = run / EDITS_FILE
        try:
            return msgspec.json.decode(read_bytes(path), type=cls)
        except FileNotFoundError:
            return cls()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FileFormatError(f"{path}: {error}") from error

    def write(self, run: Path) -> None:
        """Write the file into a run folder, whole or not at all."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_bytes(run / EDITS_FILE, text + b"\n", follow=False)


class Version(NamedTuple):
    """A version of a run: its folder's name, the changes that lead to it, and its last edit."""

    name: str
    changes: tuple[Change, ...]
    edit: Edit


def find_versions(run: Path, ensemble: PromptEnsemble, lineage: Lineage) -> list[Version]:
    """Find the versions of a run with this ensemble and lineage, the oldest first."""
    versions = []
    for path in run.resolve().parent.glob(f"*/{EDITS_FILE}"):
        with suppress(PromptBoostError, OSError):
            other = Lineage.read(path.parent)
            edits = other.edits[len(lineage.edits) :]
            if edits and other.parent_fingerprint == ensemble.fingerprint:
                changes = tuple(change for edit in edits for change in edit.changes)
                versions.append(Version(path.parent.name, changes, edits[-1]))
    return sorted(versions, key=lambda version: (version.edit.date, version.name))


def free_name(run: Path) -> str:
    """Return the name of the next version: ``run-v2``, then ``run-v3``."""
    home, number = run.resolve(), 2
    while (home.parent / f"{home.name}-v{number}").exists():
        number += 1
    return f"{home.name}-v{number}"


def version_folder(run: Path, name: str) -> Path:
    """Return the folder of a new version next to the run; raise if it exists or the name is invalid."""
    if not re.fullmatch(r"[^\W_][\w .+-]{0,99}", name) or name.endswith((".", " ")):
        raise SettingError(
            f"{name!r} is not a valid version name: use letters, digits, and . _ - + between them"
        )
    folder = run.resolve().parent / name
    if folder.exists():
        raise SettingError(f"{name} exists: choose another name")
    return folder

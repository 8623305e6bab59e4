"""Lineage: which edits made a run what it is, and how often its held-out images were looked at."""

from pathlib import Path

import msgspec

from promptboost.baselines.measures import Count, Share
from promptboost.errors import FileFormatError
from promptboost.io import read_bytes, write_bytes
from promptboost.model.change import Change

#: Where it is written, in a run folder.
EDITS_FILE = "edits.json"


class Edit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was changed at one time, by whom and why, and what it did to the answers."""

    changes: tuple[Change, ...]
    author: str
    date: str  # ISO 8601, UTC
    reason: str = ""
    images: Count = 0  # it was measured on
    before: Share | None = None  # accuracy
    after: Share | None = None
    changed: Count = 0  # images with another answer


class Lineage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The edits since the fit, oldest first, and how often held-out images were looked at.

    Whoever edits against held-out images uses them up. So every look is counted, and a part of the
    images is kept back until somebody asks for the final figure.

    Attributes
    ----------
    parent, parent_fingerprint : str, optional
        The run that was edited: its folder's name, and its text.
    edits : tuple of Edit
        All since the fit.
    looks : int
        Texts that were measured on the images that are shown.
    final_looks : int
        How often the part was looked at that is kept back.
    """

    parent: str | None = None
    parent_fingerprint: str | None = None
    edits: tuple[Edit, ...] = ()
    looks: Count = 0
    final_looks: Count = 0

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes since the fit, oldest first."""
        return tuple(change for edit in self.edits for change in edit.changes)

    @classmethod
    def read(cls, run: Path) -> "Lineage":
        """Read that of a run; one that was never edited nor looked at has an empty one."""
        path = run / EDITS_FILE
        try:
            return msgspec.json.decode(read_bytes(path), type=cls)
        except FileNotFoundError:
            return cls()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path}: {error}") from error

    def write(self, run: Path) -> None:
        """Write it into a run folder, whole or not at all."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_bytes(run / EDITS_FILE, text + b"\n", follow=False)

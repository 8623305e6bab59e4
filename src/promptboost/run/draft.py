"""Draft: the edits of a run that are not saved yet, in a file that outlives the page and the server."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from promptboost.baselines.measures import Count
from promptboost.errors import FileFormatError, PromptBoostError, place
from promptboost.io import read_bytes, write_bytes, writing
from promptboost.model.change import Change

DRAFT_FILE = "draft.json"
#: Names the folder of drafts, where the user's own state folder shall not be used.
STATE_VARIABLE = "PROMPTBOOST_STATE"


class StaleError(PromptBoostError):
    """Somebody else has edited since: what was asked for is about an older draft."""


class Draft(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Edits of a run that are not saved yet.

    Attributes
    ----------
    run : str
        The folder that is edited.
    revision : int
        Grows by one whenever the edits change, so that nobody edits what he has not seen.
    changes : tuple of Change
        The edits, oldest first.
    undone : tuple of Change
        Those taken back; the last one is done again first.
    looks : int
        Looks at held-out images that the run does not count yet.

    Examples
    --------
    >>> draft = Draft(run="run").changed(Change(kind="drop-class", class_name="cat"))
    >>> draft.revision, len(draft.changes), len(draft.undo().changes), len(draft.undo().redo().changes)
    (1, 1, 0, 1)
    """

    run: str
    revision: Count = 0
    changes: tuple[Change, ...] = ()
    undone: tuple[Change, ...] = ()
    looks: Count = 0

    def changed(self, change: Change) -> "Draft":
        """Return it with an edit more."""
        return self._next((*self.changes, change), ())

    def undo(self) -> "Draft":
        """Return it without its last edit; itself if there is none."""
        if not self.changes:
            return self
        return self._next(self.changes[:-1], (*self.undone, self.changes[-1]))

    def redo(self) -> "Draft":
        """Return it with the edit that was taken back last; itself if there is none."""
        if not self.undone:
            return self
        return self._next((*self.changes, self.undone[-1]), self.undone[:-1])

    def check(self, revision: int) -> None:
        """Raise unless this is the revision that somebody has seen."""
        if revision != self.revision:
            raise StaleError(
                f"the draft has been edited elsewhere since: it is at revision {self.revision}, and you "
                f"have seen {revision}; look at it again, then repeat what you did"
            )

    def _next(self, changes: tuple[Change, ...], undone: tuple[Change, ...]) -> "Draft":
        return msgspec.structs.replace(
            self, revision=self.revision + 1, changes=changes, undone=undone
        )

    def write(self, folder: Path) -> None:
        """Write it into its folder, whole or not at all."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_bytes(folder / DRAFT_FILE, text + b"\n", follow=False)


def read_draft(folder: Path) -> Draft | None:
    """Read the draft in a folder; None where there is none."""
    path = folder / DRAFT_FILE
    try:
        return msgspec.json.decode(read_bytes(path), type=Draft)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{place(path)} holds no unsaved edits that can be read: {error}; move it away to begin anew"
        ) from error


def draft_folder(run: Path, fingerprint: str) -> Path:
    """Return the folder for the draft of a run with a certain text; a text fitted anew has another."""
    name = hashlib.blake2b(
        f"{os.path.realpath(run)}\n{fingerprint}".encode("utf-8", "surrogateescape"), digest_size=16
    ).hexdigest()
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen).expanduser() / "drafts" / name
    import platformdirs

    return platformdirs.user_state_path("promptboost", appauthor=False) / "drafts" / name


@contextmanager
def only_editor(folder: Path) -> Iterator[None]:
    """Be the only workbench of a draft, until the block or the process ends."""
    with writing(folder, "workbench", patience=0.0):
        yield

"""The state of a workbench: a run, its unsaved edits, and their effect on held-out images."""

import hashlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.measures import Count
from promptboost.encoders.embedder import Embedder, embed_texts
from promptboost.errors import FileFormatError, PromptBoostError, RunError, SettingError, place
from promptboost.io import read_bytes, write_bytes, writing
from promptboost.llm.client import ModelSettings
from promptboost.llm.growth import contrast_sentences
from promptboost.model import PromptEnsemble
from promptboost.model.edits import Change, difference
from promptboost.model.explanation import SHOWN, explain_rows
from promptboost.model.head import Head
from promptboost.run.edit import edit_run, edited_head
from promptboost.run.fit import thumbnail
from promptboost.run.holdout import Candidate, Effect, HeldOutSet, add_looks
from promptboost.run.influence import ConfusedPair, confused_pairs, each_influence
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Version, find_versions, free_name, version_folder

DRAFT_FILE = "draft.json"
#: Names the folder of drafts; by default it is in the user's state folder.
STATE_VARIABLE = "PROMPTBOOST_STATE"
#: Flips of each kind, confusions, images of each confusion, and losing classes that are listed.
_FLIPS, _CONFUSIONS, _IMAGES, _WORSE = 24, 12, 5, 6
#: Sentences requested from a language model for each class of a pair, and their share if added.
_SUGGESTED, _SHARE = 4, 0.1
#: Uploaded images that are remembered, so that an explanation follows the edits.
_UPLOADS = 8


class StaleError(PromptBoostError):
    """The draft has been edited since the client read it."""


class Draft(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Unsaved edits of a run, kept in a file that outlives the page and the server.

    Attributes
    ----------
    run : str
        The folder that is edited.
    revision : int
        Grows by one with each edit, undo and redo.
    changes : tuple of Change
        The edits, oldest first.
    undone : tuple of Change
        Edits that were undone; the last one is redone first.
    looks : int
        Looks at held-out images that the run does not count yet.
    """

    run: str
    revision: Count = 0
    changes: tuple[Change, ...] = ()
    undone: tuple[Change, ...] = ()
    looks: Count = 0

    def moved(self, changes: tuple[Change, ...], undone: tuple[Change, ...] = ()) -> "Draft":
        """Return the next revision."""
        return msgspec.structs.replace(
            self, revision=self.revision + 1, changes=changes, undone=undone
        )

    def check(self, revision: int) -> None:
        """Raise unless the client has seen this revision."""
        if revision != self.revision:
            raise StaleError(
                f"the draft has been edited elsewhere since: it is at revision {self.revision}, and you "
                f"have seen {revision}; look at it again, then repeat what you did"
            )

    def write(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_bytes(folder / DRAFT_FILE, text + b"\n", follow=False)


def read_draft(folder: Path) -> Draft | None:
    """Read the draft in a folder; None if there is none."""
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
    """Return the folder of the draft of a run; an ensemble that is fitted anew has another."""
    name = hashlib.blake2b(
        f"{os.path.realpath(run)}\n{fingerprint}".encode("utf-8", "surrogateescape"), digest_size=16
    ).hexdigest()
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen).expanduser() / "drafts" / name
    import platformdirs

    return platformdirs.user_state_path("promptboost", appauthor=False) / "drafts" / name


def only_editor(folder: Path) -> AbstractContextManager[None]:
    """Lock a draft: it has one workbench at a time."""
    return writing(folder, "workbench", patience=0.0)


class Workbench:
    """A run with its draft, measured after every edit. One thread at a time may use it.

    Parameters
    ----------
    run : Path
        The run that is edited; it stays as it is, except for the count of looks.
    held_out : HeldOutSet
        Its held-out images.
    folder : Path, optional
        The folder of the draft.
    model : ModelSettings, optional
        A language model that suggests sentences.
    finish : tuple of callable
        Called with the folder of a saved version: its report and its card.
    options : mapping, optional
        How encoders are opened to save: `cache`, `device`, `allow_download`.
    """

    def __init__(
        self,
        run: Path,
        held_out: HeldOutSet,
        folder: Path | None = None,
        *,
        model: ModelSettings | None = None,
        finish: tuple[Callable[[Path], object], ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.run, self.held_out = run, held_out
        self.folder = folder or draft_folder(run, held_out.ensemble.fingerprint)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model, self._finish, self._options = model, finish, options or {}
        self.draft, self.restored = Draft(run=str(run.resolve())), False
        self._candidates = [held_out.base]  # one more after each change of the draft
        self._last_step: tuple[str, Candidate] | None = None
        self._looks = held_out.lineage.looks
        self._seen: set[int] = set()
        self._head: tuple[int, Head, dict[str, NDArray[Any]]] | None = None
        self._places = {name: number for number, name in enumerate(held_out.images)}
        self._thumbnails: dict[str, str] = {}
        self._uploads: OrderedDict[str, tuple[str, NDArray[np.floating]]] = OrderedDict()
        if (restored := read_draft(self.folder)) is not None:
            for number, change in enumerate(restored.changes, start=1):
                edited = change.apply(self.ensemble)
                self._candidates.append(held_out.candidate(restored.changes[:number], edited))
            self.draft, self.restored = restored, bool(restored.changes)
            self._seen |= {self._key(held_out.base), self._key(self._now)}
        self._look(held_out.base)
        self.write_looks()
        self.find_versions()

    @property
    def ensemble(self) -> PromptEnsemble:
        """The ensemble with all edits of the draft."""
        return self._now.ensemble

    @property
    def _now(self) -> Candidate:
        return self._candidates[-1]

    @property
    def embedder(self) -> Embedder:
        """The embedder of the run."""
        source = self.held_out.scores.source
        assert isinstance(source, Embedder)
        return source

    # --- looks -----------------------------------------------------------------------------------

    @property
    def looks(self) -> int:
        """Number of ensembles measured on the images shown."""
        return self._looks + self.draft.looks

    def _key(self, candidate: Candidate) -> int:
        return hash(self.held_out.keys(candidate))

    def _look(self, candidate: Candidate) -> None:
        """Count a candidate that was never measured before."""
        key = self._key(candidate)
        if key not in self._seen:
            self._seen.add(key)
            self.draft = msgspec.structs.replace(self.draft, looks=self.draft.looks + 1)

    def write_looks(self) -> None:
        """Write the looks into the run; on failure they stay with the draft."""
        self.draft.write(self.folder)
        if (looks := self.draft.looks) and (total := self.counted(looks)) is not None:
            self.looks_written(looks, total)

    def counted(self, looks: int) -> int | None:
        """Count looks in the run and return their number; any thread may call this."""
        try:
            return add_looks(self.run, looks=looks).looks
        except (OSError, RunError):
            return None

    def looks_written(self, looks: int, total: int) -> None:
        """Remove looks that the run counts from the draft; after a kill in between, they count twice."""
        self._looks = total
        self.draft = msgspec.structs.replace(self.draft, looks=self.draft.looks - looks)
        self.draft.write(self.folder)

    # --- editing: each returns the new state -----------------------------------------------------

    def edit(self, revision: int, change: Change) -> dict[str, Any]:
        """Make an edit; raise, and change nothing, if it is not possible."""
        self.draft.check(revision)
        edited = change.apply(self.ensemble)
        if edited == self.ensemble:
            raise SettingError("this edit changes nothing")
        return self._move(self.draft.moved((*self.draft.changes, change)), edited)

    def undo(self, revision: int) -> dict[str, Any]:
        """Undo the last edit."""
        self.draft.check(revision)
        if not self.draft.changes:
            raise SettingError("there is nothing to undo")
        *changes, last = self.draft.changes
        return self._move(self.draft.moved(tuple(changes), (*self.draft.undone, last)), None)

    def redo(self, revision: int) -> dict[str, Any]:
        """Redo the edit that was undone last."""
        self.draft.check(revision)
        if not self.draft.undone:
            raise SettingError("there is nothing to redo")
        *undone, last = self.draft.undone
        draft = self.draft.moved((*self.draft.changes, last), tuple(undone))
        return self._move(draft, last.apply(self.ensemble))

    def _move(self, draft: Draft, edited: PromptEnsemble | None) -> dict[str, Any]:
        """Go one edit further or, without an ensemble, one back; the draft is written first."""
        before = self._now
        if edited is None:
            candidates = self._candidates[:-1]
            message = f"undone: {self.ensemble.history[-1]}"
        else:
            new = self.held_out.candidate(draft.changes, edited)
            candidates = [*self._candidates, new]
            message = "; ".join(edited.history[len(before.ensemble.history) :])
        key = self._key(candidates[-1])
        if key not in self._seen:
            draft = msgspec.structs.replace(draft, looks=draft.looks + 1)
        draft.write(self.folder)
        self._seen.add(key)
        self.draft, self._candidates = draft, candidates
        self._last_step = message, before
        return self.state()

    # --- figures ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything the page shows after an edit."""
        base, now = self.held_out.base, self._now
        effect = self.held_out.compare(base, now, _FLIPS)
        step = None
        if self._last_step is not None:
            message, before = self._last_step
            last = self.held_out.compare(before, now, 0)
            step = {"message": message, **_effect_record(last, now.names)}
        saved = (v.name for v in self._versions if v.changes == self.draft.changes)
        return {
            "run": self.run.resolve().name,
            "encoder": base.ensemble.encoder_id,
            "revision": self.draft.revision,
            "restored": self.restored,
            "looks": self.looks,
            "undo": len(self.draft.changes),
            "redo": len(self.draft.undone),
            "history": list(self.ensemble.history[len(base.ensemble.history) :]),
            "effect": _effect_record(effect, now.names, flips=True),
            "step": step,
            "classes": self._class_records(effect),
            "versions": [
                {
                    "name": version.name,
                    "date": version.edit.date,
                    "reason": version.edit.reason,
                    "accuracy": version.edit.after,
                    "changes": len(version.changes),
                }
                for version in self._versions
            ],
            "saved": next(saved, None),
            "next_version": free_name(self.run),
            "model": None if self.model is None else self.model.model,
        }

    def _class_records(self, effect: Effect) -> list[dict[str, Any]]:
        """Return the classes with their accuracy and sentences, now and in the run."""
        base, now = self.held_out.base, self._now
        keys = zip(base.ensemble.class_names, self.held_out.keys(base), strict=True)
        shares = {name: dict(key.weights) for name, key in keys}
        measured = {change.class_name: change for change in effect.classes}
        records = []
        for name, key in zip(now.ensemble.class_names, self.held_out.keys(now), strict=True):
            change = measured.get(now.labels.get(name, ""))
            original = now.originals.get(name)
            was = shares.get(original or "", {})
            records.append(
                {
                    "name": name,
                    "was": original,
                    "count": change.count if change else 0,
                    "before": change.before if change else None,
                    "after": change.after if change else None,
                    "sentences": [
                        {"text": sentence, "share": share, "was": was.get(sentence)}
                        for sentence, share in key.weights
                    ],
                }
            )
        return records

    def reasons(self) -> Iterator[dict[str, Any] | None]:
        """Yield None after computing the influences of a class's sentences; at the end, yield all.

        An influence is the effect on the images shown when that sentence alone is removed.
        """
        revision, now, scores = self.draft.revision, self._now, self.held_out.scores
        labels = self.held_out.labels_in(now)
        sentences: dict[str, dict[str, list[int] | None]] = {}
        for influences in each_influence(scores, now.ensemble, labels, now.originals):
            for each in influences:
                counts = [each.mended, each.broken, each.changed] if each.removable else None
                sentences.setdefault(each.class_name, {})[each.prompt] = counts
            yield None
        confused = confused_pairs(
            scores, now.ensemble, labels, most=_CONFUSIONS, originals=now.originals
        )
        _, answers = self.held_out.answers(now)
        index = now.ensemble.class_names.index

        def images(pair: ConfusedPair) -> list[str]:
            mixed = (labels == index(pair.true)) & (answers == index(pair.answered))
            return [self.held_out.images[k] for k in np.flatnonzero(mixed)[:_IMAGES].tolist()]

        confusions = [
            {
                "true": pair.true,
                "answered": pair.answered,
                "count": pair.count,
                "sentences": [
                    {"class": part.class_name, "text": part.prompt, "value": part.value}
                    for part in pair.sentences[:1]
                ],
                "images": images(pair),
            }
            for pair in confused
        ]
        yield {"revision": revision, "sentences": sentences, "confusions": confusions}

    # --- images ----------------------------------------------------------------------------------

    def upload(self, name: str, row: NDArray[np.floating]) -> str:
        """Remember the embedding of an image for a while; return its key."""
        key = secrets.token_hex(8)
        self._uploads[key] = name, row
        while len(self._uploads) > _UPLOADS:
            self._uploads.popitem(last=False)
        return key

    def _place(self, name: str) -> int:
        if name not in self._places:
            raise SettingError(f"there is no image {name!r} among those that are shown")
        return self._places[name]

    def thumbnail(self, name: str) -> str:
        """Return a small JPEG of a held-out image as a data URL."""
        number = self._place(name)
        if name not in self._thumbnails:
            if self.held_out.data is None:
                raise SettingError("the images themselves are not here")
            self._thumbnails[name] = thumbnail(self.held_out.data.images[number])
        return self._thumbnails[name]

    def explain(
        self, *, image: str | None = None, dropped: str | None = None, against: str | None = None
    ) -> dict[str, Any]:
        """Explain the answer for a held-out image by its name, or for an upload by its key."""
        label = None
        if dropped is None:
            name = image or ""
            number = self._place(name)
            label = self._now.names.get(
                self.held_out.class_names[int(self.held_out.labels[number])]
            )
            row = self.held_out.scores.embeddings[number]
        elif dropped in self._uploads:
            name, row = self._uploads[dropped]
        else:
            raise SettingError("this image is not remembered any more; choose it again")
        head, vectors = self._embedded()
        if against is None and label is not None:
            (first,) = explain_rows(self.ensemble, head, vectors, row[None], [name])
            against = label if first.answer != label else None
        (why,) = explain_rows(self.ensemble, head, vectors, row[None], [name], against=against)
        return {
            **why.record(most=SHOWN),
            "label": label,
            "changes": why.changes(),
            "held_out": dropped is None,
            "id": image if dropped is None else dropped,
            "revision": self.draft.revision,
        }

    def _embedded(self) -> tuple[Head, dict[str, NDArray[Any]]]:
        """Return the head of the draft, and the embedding of each sentence."""
        if self._head is None or self._head[0] != self.draft.revision:
            texts = self.ensemble.texts()
            rows = embed_texts(self.held_out.scores.source, texts)
            head = edited_head(
                self.held_out.scores.head, self.embedder, self.ensemble, self.draft.changes
            )
            self._head = self.draft.revision, head, dict(zip(texts, rows, strict=True))
        return self._head[1], self._head[2]

    # --- versions --------------------------------------------------------------------------------

    def find_versions(self) -> None:
        """Find the saved versions next to the run."""
        self._versions: list[Version] = find_versions(
            self.run, self.held_out.ensemble, self.held_out.lineage
        )

    def _candidate(self, version: str) -> Candidate:
        if version in ("run", "draft"):
            return self.held_out.base if version == "run" else self._now
        for saved in self._versions:
            if saved.name == version:
                return self.held_out.candidate(saved.changes)
        raise SettingError(f"there is no version {version!r}")

    def compare(self, before: str, after: str) -> dict[str, Any]:
        """Compare two versions: ``run``, ``draft``, or the name of a saved one."""
        self.find_versions()
        old, new = self._candidate(before), self._candidate(after)
        self._look(old)
        self._look(new)
        self.draft.write(self.folder)
        effect = self.held_out.compare(old, new, _FLIPS)
        return {
            "before": before,
            "after": after,
            "effect": _effect_record(effect, new.names, flips=True),
            "classes": [
                {"name": new.names[change.class_name], **msgspec.to_builtins(change)}
                for change in effect.classes
                if change.before != change.after
            ],
            "difference": msgspec.to_builtins(difference(old.ensemble, new.ensemble)),
            "looks": self.looks,
        }

    def save(self, revision: int, name: str | None = None, reason: str = "") -> dict[str, Any]:
        """Save the draft as a new run next to the one that is edited."""
        self.draft.check(revision)
        self.find_versions()
        if not self.draft.changes:
            raise SettingError("there is nothing to save: the draft is the run as it is")
        for version in self._versions:
            if version.changes == self.draft.changes:
                raise SettingError(f"this draft is saved already, as {version.name}")
        folder = RunFolder(self.run)
        now = folder.steady(lambda: PromptEnsemble.load(folder.ensemble_path))
        if now.fingerprint != self.held_out.ensemble.fingerprint:
            raise RunError(
                f"the text of {self.run} has changed since the workbench was opened; open it again"
            )
        self.write_looks()
        edited = edit_run(
            self.run,
            self.draft.changes,
            version_folder(self.run, name or free_name(self.run)),
            reason=reason,
            held_out=self.held_out,
            finish=self._finish,
            **self._options,
        )
        self.find_versions()
        return {**self.state(), "saved_as": str(edited.run), "notes": list(edited.notes)}

    # --- suggestions -----------------------------------------------------------------------------

    def request_sentences(self, one: str, other: str) -> dict[str, list[str]]:
        """Ask the language model how two classes differ; any thread may call this."""
        if self.model is None:
            raise SettingError("no language model is configured: start with --model NAME")
        for name in (one, other):
            if name not in self.ensemble.class_names:
                raise SettingError(f"there is no class {name!r}")
        replies = self.folder / "replies.jsonl"
        return contrast_sentences(one, other, _SUGGESTED, self.model, replies)

    def suggestions(self, sentences: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """Measure the effect of adding each sentence, the best first."""
        records = []
        for name, texts in sentences.items():
            if name not in self.ensemble.class_names:
                continue
            for text in texts:
                if text in self.ensemble.prompts(name):
                    continue
                change = Change(kind="add", class_name=name, sentence=text, share=_SHARE)
                after = self.held_out.candidate(
                    (*self.draft.changes, change), change.apply(self.ensemble)
                )
                self._look(after)
                effect = self.held_out.compare(self._now, after, 0)
                figures = _effect_record(effect, after.names)
                records.append({"class": name, "text": text, "share": _SHARE, **figures})
        self.draft.write(self.folder)
        return sorted(records, key=lambda r: (r["before"] or 0) - (r["after"] or 0))


def _effect_record(
    effect: Effect, names: Mapping[str, str], *, flips: bool = False
) -> dict[str, Any]:
    """Return an effect as JSON; `names` maps class names of the images to those of now."""
    record: dict[str, Any] = {
        "images": effect.images,
        "before": effect.before,
        "after": effect.after,
        "changed": effect.changed,
        "right": effect.mended,
        "wrong": effect.broken,
        "left_out": effect.left_out,
        "paying": [
            {
                "name": names.get(change.class_name, change.class_name),
                "count": change.count,
                "before": change.before,
                "after": change.after,
            }
            for change in effect.worse[:_WORSE]
        ],
        "more_paying": max(0, len(effect.worse) - _WORSE),
    }
    if flips:
        by_kind: dict[str, list[dict[str, Any]]] = {"right": [], "wrong": [], "other": []}
        for flip in effect.flips:
            label = names.get(flip.label, flip.label)
            by_kind[flip.becomes].append(
                {"image": flip.image, "label": label, "before": flip.before, "after": flip.after}
            )
        record["flips"] = by_kind
    return record

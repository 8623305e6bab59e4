"""The state of a workbench: a run, its unsaved edits, and their effect on held-out images."""

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines import OURS, Count
from promptboost.encoders.embedder import Embedder, embed_texts
from promptboost.errors import FileFormatError, PromptBoostError, RunError, SettingError, place
from promptboost.io import read_bytes, write_bytes, writing
from promptboost.llm.client import ModelSettings
from promptboost.llm.growth import contrast_sentences
from promptboost.model import PromptEnsemble
from promptboost.model.edits import Change, difference
from promptboost.model.head import Head
from promptboost.model.prediction import TERMS, explain_rows
from promptboost.run.edit import edit_run, edited_head
from promptboost.run.evaluate import evaluate_run
from promptboost.run.fit import thumbnail
from promptboost.run.holdout import Candidate, Effect, HeldOutSet, add_looks
from promptboost.run.influence import ConfusedPair, confused_pairs, each_influence
from promptboost.run.refit import refit_run
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Version, find_versions, free_name, version_folder
from promptboost.workbench.labels import TrainingLabels, accuracy_record

DRAFT_FILE = "draft.json"
#: Names the folder of drafts; by default it is in the user's state folder.
STATE_VARIABLE = "PROMPTBOOST_STATE"
#: Flips of each kind, confusions, and images of each confusion that are listed.
_FLIPS, _CONFUSIONS, _IMAGES = 24, 12, 5
#: Sentences requested from a language model for each class of a pair, and their share if added.
_SUGGESTED, _SHARE = 4, 0.1


class StaleError(PromptBoostError):
    """The draft was edited after the client read it."""


class Draft(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Unsaved edits of a run, kept in a file that outlives the page and the server."""

    run: str  # its folder
    revision: Count = 0  # grows by one with each edit, undo and redo
    changes: tuple[Change, ...] = ()  # oldest first
    undone: tuple[Change, ...] = ()  # the last one is redone first
    looks: Count = 0  # at held-out images, which the run does not count yet

    def moved(self, changes: tuple[Change, ...], undone: tuple[Change, ...] = ()) -> "Draft":
        """Return the next revision."""
        return msgspec.structs.replace(
            self, revision=self.revision + 1, changes=changes, undone=undone
        )

    def check(self, revision: int) -> None:
        """Raise unless the client has seen this revision."""
        if revision != self.revision:
            raise StaleError(
                f"the draft was edited elsewhere: it is at revision {self.revision}, not {revision}; "
                "reload it and repeat the edit"
            )

    def write(self, folder: Path) -> None:
        """Write the file atomically."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_bytes(folder / DRAFT_FILE, text + b"\n", follow=False)


def read_draft(folder: Path) -> Draft | None:
    """Read the draft in a folder; None if there is none."""
    path = folder / DRAFT_FILE
    try:
        return msgspec.json.decode(read_bytes(path), type=Draft)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(
            f"{place(path)} cannot be read: {error}; move it away to start without edits"
        ) from error


def draft_folder(run: Path, fingerprint: str) -> Path:
    """Return the folder of the draft of a run and ensemble."""
    name = hashlib.blake2b(
        f"{os.path.realpath(run)}\n{fingerprint}".encode("utf-8", "surrogateescape"), digest_size=16
    ).hexdigest()
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen).expanduser() / "drafts" / name
    import platformdirs

    return platformdirs.user_state_path("promptboost", appauthor=False) / "drafts" / name


def only_editor(folder: Path) -> AbstractContextManager[None]:
    """Lock a draft for one workbench."""
    return writing(folder, "workbench", patience=0.0)


class Workbench:
    """A run with its draft, measured after every edit; not thread-safe.

    Of the run, only its count of looks changes. `folder` is that of the draft, `model` suggests sentences,
    and `options` are those for opening encoders when saving. `unlabeled` and `source` are for
    :class:`TrainingLabels`.
    """

    def __init__(
        self,
        run: Path,
        held_out: HeldOutSet,
        folder: Path | None = None,
        *,
        model: ModelSettings | None = None,
        options: Mapping[str, Any] | None = None,
        unlabeled: Sequence[str] = (),
        source: str | None = None,
    ) -> None:
        self.run, self.held_out = run, held_out
        self.labels = TrainingLabels(run, held_out, unlabeled, source=source, options=options)
        self.folder = folder or draft_folder(run, held_out.ensemble.fingerprint)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model, self._options = model, options or {}
        self.draft, self.restored = Draft(run=str(run.resolve())), False
        self._candidates = [held_out.base]  # one more after each change of the draft
        self._last_step: tuple[str, Candidate] | None = None
        self._looks = held_out.lineage.looks
        self._seen: set[int] = set()
        self._head: tuple[int, Head, dict[str, NDArray[Any]]] | None = None
        self._places = {name: number for number, name in enumerate(held_out.images)}
        self._thumbnails: dict[str, str] = {}
        self._upload: tuple[str, str, NDArray[np.floating]] | None = None  # key, name, row
        if (restored := read_draft(self.folder)) is not None:
            for number, change in enumerate(restored.changes, start=1):
                edited = change.apply(self.ensemble)
                self._candidates.append(held_out.candidate(restored.changes[:number], edited))
            self.draft, self.restored = restored, bool(restored.changes)
            self._seen |= {self._key(held_out.base), self._key(self._now)}
        self._fit = accuracy_record(RunFolder(run).results)
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
        if self.held_out.images and key not in self._seen:
            self._seen.add(key)
            self.draft = msgspec.structs.replace(self.draft, looks=self.draft.looks + 1)

    def write_looks(self) -> None:
        """Write the looks into the run; on failure they stay with the draft.

        After a kill in between, they count twice.
        """
        self.draft.write(self.folder)
        if self.draft.looks:
            with suppress(OSError, RunError):
                self._looks = add_looks(self.run, looks=self.draft.looks).looks
                self.draft = msgspec.structs.replace(self.draft, looks=0)
                self.draft.write(self.folder)

    # --- editing: each returns the new state -----------------------------------------------------

    def edit(self, revision: int, change: Change) -> dict[str, Any]:
        """Apply an edit; raise without a change if it is impossible."""
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
        """Apply one edit or, without an ensemble, undo one; write the draft first."""
        previous = self._now
        if edited is None:
            candidates = self._candidates[:-1]
            message = f"undone: {self.ensemble.history[-1]}"
        else:
            new = self.held_out.candidate(draft.changes, edited)
            candidates = [*self._candidates, new]
            history = edited.history[len(previous.ensemble.history) :]
            message = "; ".join(filter(None, [*history, draft.changes[-1].remark]))
        key = self._key(candidates[-1])
        if self.held_out.images and key not in self._seen:
            draft = msgspec.structs.replace(draft, looks=draft.looks + 1)
        draft.write(self.folder)
        self._seen.add(key)
        self.draft, self._candidates = draft, candidates
        self._last_step = message, previous
        return self.state()

    # --- figures ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything the page shows after an edit."""
        base, now = self.held_out.base, self._now
        effect = self.held_out.compare(base, now, _FLIPS)
        step = None
        if self._last_step is not None:
            message, previous = self._last_step
            last = self.held_out.compare(previous, now, 0)
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
            "effect": _effect_record(effect, now.names),
            "step": step,
            "classes": self._class_records(effect),
            "versions": [
                {**msgspec.to_builtins(edit), "name": name, "changes": len(changes)}
                for name, changes, edit in self._versions
            ],
            "fit": self._fit,
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
                        {
                            "text": sentence,
                            "share": share,
                            "was": was.get(sentence),
                            "pinned": sentence in now.ensemble.pinned.get(name, ()),
                        }
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

        confusions = [{**msgspec.to_builtins(pair), "images": images(pair)} for pair in confused]
        yield {"revision": revision, "sentences": sentences, "confusions": confusions}

    # --- images ----------------------------------------------------------------------------------

    def upload(self, name: str, row: NDArray[np.floating]) -> str:
        """Keep the embedding of an image until the next upload; return its key."""
        key = secrets.token_hex(8)
        self._upload = key, name, row
        return key

    def _place(self, name: str) -> int:
        if name not in self._places:
            raise SettingError(f"there is no image {name!r} among the images shown")
        return self._places[name]

    def thumbnail(self, name: str) -> str:
        """Return a small JPEG of an image as a data URL."""
        if name not in self._places and (labeled := self.labels.thumbnail(name)) is not None:
            return labeled
        number = self._place(name)
        if name not in self._thumbnails:
            if self.held_out.data is None:
                raise SettingError("the image files are not available")
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
        elif self._upload is not None and dropped == self._upload[0]:
            _, name, row = self._upload
        else:
            raise SettingError("this upload has expired; choose the image again")
        head, vectors = self._embedded()
        if against is None and label is not None:
            (first,) = explain_rows(self.ensemble, head, vectors, row[None], [name])
            against = label if first.answer != label else None
        (why,) = explain_rows(self.ensemble, head, vectors, row[None], [name], against=against)
        return {
            **why.record(most=TERMS),
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
            "effect": _effect_record(effect, new.names),
            "difference": msgspec.to_builtins(difference(old.ensemble, new.ensemble)),
        }

    def save(self, revision: int, name: str | None = None, reason: str = "") -> dict[str, Any]:
        """Save the draft as a new run next to the one that is edited."""
        self.draft.check(revision)
        self.find_versions()
        if not self.draft.changes:
            raise SettingError("there is nothing to save: the draft has no edits")
        for version in self._versions:
            if version.changes == self.draft.changes:
                raise SettingError(f"this draft is saved already, as {version.name}")
        folder = RunFolder(self.run)
        now = folder.steady(lambda: folder.ensemble)
        if now.fingerprint != self.held_out.ensemble.fingerprint:
            raise RunError(
                f"the ensemble of {self.run} has changed since the workbench was opened; open it again"
            )
        self.write_looks()
        edited = edit_run(
            self.run,
            self.draft.changes,
            version_folder(self.run, name or free_name(self.run)),
            reason=reason,
            held_out=self.held_out,
            **self._options,
        )
        self.find_versions()
        return {**self.state(), "saved_as": str(edited.run), "notes": list(edited.notes)}

    def refit(self, name: str) -> dict[str, Any]:
        """Fit the residual of a saved version again, and return its accuracy."""
        results = refit_run(self._version(name), **self._options)
        return {"name": name, **accuracy_record(results)}

    def final(self, name: str) -> dict[str, Any]:
        """Evaluate a saved version on the reserved held-out images, and count it."""
        record = evaluate_run(self._version(name), None, held_out=True, final=True, **self._options)
        (accuracy,) = (each["accuracy"] for each in record["methods"] if each["name"] == OURS)
        looks = record["held_out"]["final_looks"]
        return {"name": name, "accuracy": accuracy, "images": record["images"], "looks": looks}

    def _version(self, name: str) -> Path:
        self._candidate(name)  # raises if there is none
        return self.run.resolve().parent / name

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


def _effect_record(effect: Effect, names: Mapping[str, str]) -> dict[str, Any]:
    """Return an effect as JSON; `names` maps class names of the images to those of now."""
    record: dict[str, Any] = msgspec.to_builtins(effect)
    for key, records in (("label", record["flips"]), ("class", record["classes"])):
        for each in records:
            each[key] = names.get(each[key], each[key])
    return record

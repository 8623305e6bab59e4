"""Workbench: a run being edited, measured after every edit; what the page of the browser shows."""

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.embedder import Embedder, embed_texts
from promptboost.errors import PromptBoostError, RunError, SettingError
from promptboost.evaluation.influence import confusion_blame, each_influence
from promptboost.llm.client import ModelSettings
from promptboost.llm.generation import generate_pool
from promptboost.llm.questions import contrast_questions
from promptboost.llm.replies import ReplyCache
from promptboost.llm.requests import Manner, Retries
from promptboost.model import PromptEnsemble
from promptboost.model.change import Change, apply_changes
from promptboost.model.classifier import AnyHead
from promptboost.model.difference import Difference
from promptboost.model.explanation import SHOWN, explain_rows
from promptboost.model.scores import ClassKey
from promptboost.runs.bench import Bench, Effect, Flip, add_looks
from promptboost.runs.draft import Draft, draft_folder, read_draft
from promptboost.runs.edit import Edited, edit_run, edited_head
from promptboost.runs.fit import thumbnail
from promptboost.runs.lineage import EDITS_FILE, Lineage
from promptboost.runs.run_folder import RunFolder

#: Images of each kind that are shown of those with another answer.
_FLIPS = 24
#: Confusions, images of each, and classes that pay, that are told.
_CONFUSIONS, _MIXED, _PAYING = 12, 5, 6
#: Images of the user's own that are remembered, so that an explanation follows the edits.
_DROPPED = 8
#: Sentences that a language model is asked for, about each class of a pair, and their share if taken.
_SUGGESTED, _SHARE = 4, 0.1
THE_RUN, THE_DRAFT = "run", "draft"

_Text = tuple[PromptEnsemble, tuple[Change, ...]]


@dataclass
class Workbench:
    """The draft of a run, its text and what that does to the answers for held-out images.

    One thread at a time may use it.

    Attributes
    ----------
    run : Path
        The run that is edited; it stays as it is, but for the count of looks.
    bench : Bench
        Its held-out images.
    folder : Path
        Where the draft is kept.
    model : ModelSettings, optional
        The language model that is asked for sentences.
    finish : tuple of callable
        What a saved version is finished with: its report and its card.
    options : mapping
        How encoders are opened to save: `cache`, `device`, `allow_download`.
    """

    run: Path
    bench: Bench
    folder: Path
    model: ModelSettings | None = None
    finish: tuple[Callable[[Path], object], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draft, self.restored = Draft(run=str(self.run.resolve())), False
        self._texts = [self.bench.ensemble]
        self._last: tuple[str, _Text] | None = None
        self._versions: list[Version] = []
        self._dropped: OrderedDict[str, tuple[str, NDArray[np.floating]]] = OrderedDict()
        self._places = {name: place for place, name in enumerate(self.bench.images)}
        self._thumbnails: dict[int, str] = {}
        self._looks = self.bench.lineage.looks
        self._seen: set[int] = set()
        self._head: tuple[int, AnyHead, dict[str, NDArray[Any]]] | None = None
        kept = read_draft(self.folder)
        if kept is not None:
            for change in kept.changes:
                self._texts.append(change.apply(self.text))
            self.draft, self.restored = kept, bool(kept.changes)
            self._seen |= {self._key((self.bench.ensemble, ())), self._key(self._now)}
        self._look((self.bench.ensemble, ()))
        self.write_looks()
        self.find_versions()

    # --- what it is ------------------------------------------------------------------------------

    @property
    def text(self) -> PromptEnsemble:
        """The text as it is edited now."""
        return self._texts[-1]

    @property
    def looks(self) -> int:
        """How often the images were looked at that are shown."""
        return self._looks + self.draft.looks

    @property
    def _now(self) -> _Text:
        return self.text, self.draft.changes

    def _text_of(self, version: str) -> _Text:
        if version == THE_DRAFT:
            return self._now
        if version == THE_RUN:
            return self.bench.ensemble, ()
        for one in self._versions:
            if one.name == version:
                return apply_changes(self.bench.ensemble, one.changes), one.changes
        raise SettingError(f"there is no version {version!r}")

    def _key(self, text: _Text) -> int:
        return hash(self._class_keys(text))

    def _class_keys(self, text: _Text) -> tuple[ClassKey, ...]:
        ensemble, changes = text
        known = self.bench.known_names(self.bench.originals(changes))
        return self.bench.scores.class_keys(ensemble, known)

    def _look(self, text: _Text) -> None:
        """Count a text that was never measured before."""
        key = self._key(text)
        if key not in self._seen:
            self._seen.add(key)
            self.draft = msgspec.structs.replace(self.draft, looks=self.draft.looks + 1)

    def write_looks(self) -> None:
        """Write the looks into the run; where that cannot be done, they stay with the draft."""
        self.draft.write(self.folder)
        if (looks := self.draft.looks) and (total := self.counted(looks)) is not None:
            self.looks_written(looks, total)

    def counted(self, looks: int) -> int | None:
        """Count looks in the run, and return how many there are; nothing else is touched."""
        try:
            return add_looks(self.run, looks=looks).looks
        except (OSError, RunError):
            return None

    def looks_written(self, looks: int, total: int) -> None:
        """Count no longer with the draft what the run counts: whoever is killed in between counts twice."""
        self._looks = total
        self.draft = msgspec.structs.replace(self.draft, looks=self.draft.looks - looks)
        self.draft.write(self.folder)

    # --- editing ---------------------------------------------------------------------------------

    def edit(self, revision: int, change: Change) -> None:
        """Make an edit; raise, and change nothing, if it cannot be made."""
        self.draft.check(revision)
        text = change.apply(self.text)
        if text == self.text:
            raise SettingError("this edit changes nothing")
        self._move(self.draft.changed(change), text)

    def undo(self, revision: int) -> None:
        """Take the last edit back."""
        self.draft.check(revision)
        if not self.draft.changes:
            raise SettingError("there is nothing to undo")
        self._move(self.draft.undo(), None)

    def redo(self, revision: int) -> None:
        """Do again what was taken back last."""
        self.draft.check(revision)
        if not self.draft.undone:
            raise SettingError("there is nothing to do again")
        self._move(self.draft.redo(), self.draft.undone[-1].apply(self.text))

    def _move(self, draft: Draft, text: PromptEnsemble | None) -> None:
        before, line = self._now, self.text.history[-1:]
        self.draft = draft
        if text is None:
            self._texts.pop()
            told = f"undone: {line[0]}" if line else "undone"
        else:
            self._texts.append(text)
            new = text.history[len(before[0].history) :]
            told = "; ".join(new)
        self._last = told, before
        self._look(self._now)
        self.draft.write(self.folder)

    # --- figures ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything the page shows after an edit, as plain data."""
        effect = self.bench.between((self.bench.ensemble, ()), self._now, _FLIPS)
        back = {old: new for new, old in self.bench.originals(self.draft.changes).items()}
        step = None
        if self._last is not None:
            told, before = self._last
            step = {"told": told, **_figures(self.bench.between(before, self._now, 0), back)}
        return {
            "run": self.run.resolve().name,
            "encoder": self.bench.ensemble.encoder_id,
            "revision": self.draft.revision,
            "restored": self.restored,
            "looks": self.looks,
            "undo": len(self.draft.changes),
            "redo": len(self.draft.undone),
            "history": list(self.text.history[len(self.bench.ensemble.history) :]),
            "effect": {**_figures(effect, back), "flips": self._flips(effect, back)},
            "step": step,
            "classes": self._classes(effect),
            "versions": [one.record() for one in self._versions],
            "saved": next(
                (one.name for one in self._versions if one.changes == self.draft.changes), None
            ),
            "next_version": self._free_name(),
            "model": None if self.model is None else self.model.model,
        }

    def _classes(self, effect: Effect) -> list[dict[str, Any]]:
        originals = self.bench.originals(self.draft.changes)
        known = self.bench.known_names(originals)
        before = {
            name: dict(key[0])
            for name, key in zip(
                self.bench.ensemble.class_names,
                self._class_keys((self.bench.ensemble, ())),
                strict=True,
            )
        }
        measured = {item.class_name: item for item in effect.classes}
        classes = []
        for name, key in zip(self.text.class_names, self._class_keys(self._now), strict=True):
            item = measured.get(originals.get(name, ""))
            was = before[known[name]] if name in known else {}
            classes.append(
                {
                    "name": name,
                    "was": known.get(name),
                    "count": item.count if item else 0,
                    "before": item.before if item else None,
                    "after": item.after if item else None,
                    "sentences": [
                        {"text": text, "share": share, "was": was.get(text)}
                        for text, share in key[0]
                    ],
                }
            )
        return classes

    def _flips(self, effect: Effect, back: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {"right": [], "wrong": [], "other": []}
        for flip in effect.flips:
            found[flip.becomes].append(_flip(flip, back))
        return found

    def reasons(self) -> Iterator[dict[str, Any] | None]:
        """Yield None while the influence of each sentence is worked out, class by class; then all.

        Each is what happens to the shown images when that sentence alone is taken out.
        """
        ensemble, changes = self._now
        revision = self.draft.revision
        labels = self.bench.labels_in(ensemble, changes)
        known = self.bench.known_names(self.bench.originals(changes))
        sentences: dict[str, dict[str, list[int] | None]] = {}
        for part in each_influence(self.bench.scores, ensemble, labels, known):
            for item in part:
                counts = [item.mended, item.broken, item.changed] if item.removable else None
                sentences.setdefault(item.class_name, {})[item.prompt] = counts
            yield None
        answers, places = self.bench.scores.answers(ensemble, known), ensemble.class_names.index
        blame = confusion_blame(
            self.bench.scores, ensemble, labels, most=_CONFUSIONS, originals=known
        )
        yield {
            "revision": revision,
            "sentences": sentences,
            "confusions": [
                {
                    "true": item.true,
                    "answered": item.answered,
                    "count": item.count,
                    "sentences": [
                        {"class": name, "text": text, "value": value}
                        for name, text, value in item.sentences[:1]
                    ],
                    "images": [
                        self.bench.images[place]
                        for place in np.flatnonzero(
                            (labels == places(item.true)) & (answers == places(item.answered))
                        )[:_MIXED].tolist()
                    ],
                }
                for item in blame
            ],
        }

    # --- images ----------------------------------------------------------------------------------

    def take_image(self, name: str, row: NDArray[np.floating]) -> str:
        """Remember the embedding of an image of the user's own; return what it is called here."""
        number = secrets.token_hex(8)
        self._dropped[number] = name, row
        while len(self._dropped) > _DROPPED:
            self._dropped.popitem(last=False)
        return number

    @property
    def embedder(self) -> Embedder:
        """What embeds images and sentences."""
        source = self.bench.scores.source
        assert isinstance(source, Embedder)
        return source

    def explain(
        self, *, image: str | None = None, dropped: str | None = None, against: str | None = None
    ) -> dict[str, Any]:
        """Return why an image is answered as it is: a held-out one by its name, or one taken before."""
        label = None
        if dropped is not None:
            if dropped not in self._dropped:
                raise SettingError("this image is not remembered any more; choose it again")
            name, row = self._dropped[dropped]
        else:
            place = self._place(image or "")
            name, row = self.bench.images[place], self.bench.scores.embeddings[place]
            old = self.bench.class_names[int(self.bench.labels[place])]
            names = self.bench.originals(self.draft.changes)
            label = next((new for new, one in names.items() if one == old), None)
        head, vectors = self._embedded()
        if against is None and label is not None:
            (first,) = explain_rows(self.text, head, vectors, row[None], [name])
            against = label if first.answer != label else None
        (why,) = explain_rows(self.text, head, vectors, row[None], [name], against=against)
        return {
            **why.record(most=SHOWN),
            "label": label,
            "told": why.changes(),
            "held_out": dropped is None,
            "id": image if dropped is None else dropped,
            "revision": self.draft.revision,
        }

    def _embedded(self) -> tuple[AnyHead, dict[str, NDArray[Any]]]:
        """Return the text in the space of the images, and the row of each sentence."""
        if self._head is None or self._head[0] != self.draft.revision:
            texts = self.text.texts()
            rows = embed_texts(self.bench.scores.source, texts)
            made = edited_head(self.bench.scores.head, self.embedder, self.text, self.draft.changes)
            self._head = self.draft.revision, made, dict(zip(texts, rows, strict=True))
        return self._head[1], self._head[2]

    def thumbnail(self, image: str) -> str:
        """Return a small JPEG of a shown image, as an address that holds the data itself."""
        place = self._place(image)
        if place not in self._thumbnails:
            if self.bench.held_out is None:
                raise SettingError("the images themselves are not here")
            self._thumbnails[place] = thumbnail(self.bench.held_out.images[place])
        return self._thumbnails[place]

    def _place(self, image: str) -> int:
        if image not in self._places:
            raise SettingError(f"there is no image {image!r} among those that are shown")
        return self._places[image]

    # --- versions --------------------------------------------------------------------------------

    def find_versions(self) -> None:
        """Look for the runs beside this one that were made of it by edits."""
        base, found = self.bench.lineage, []
        for path in self.run.resolve().parent.glob(f"*/{EDITS_FILE}"):
            with suppress(PromptBoostError, OSError):
                lineage = Lineage.read(path.parent)
                edits = lineage.edits[len(base.edits) :]
                if self.bench.ensemble.has_fingerprint(lineage.parent_fingerprint) and edits:
                    changes = tuple(change for edit in edits for change in edit.changes)
                    last = edits[-1]
                    found.append(
                        Version(path.parent.name, changes, last.date, last.reason, last.after)
                    )
        self._versions = sorted(found, key=lambda one: (one.date, one.name))

    def compare(self, before: str, after: str) -> dict[str, Any]:
        """Compare two versions: ``run``, ``draft``, or the name of a saved one."""
        self.find_versions()
        one, other = self._text_of(before), self._text_of(after)
        for text in (one, other):
            self._look(text)
        self.draft.write(self.folder)
        effect = self.bench.between(one, other, _FLIPS)
        back = {old: new for new, old in self.bench.originals(other[1]).items()}
        return {
            "before": before,
            "after": after,
            "effect": {**_figures(effect, back), "flips": self._flips(effect, back)},
            "classes": [
                {"name": back[item.class_name], **msgspec.to_builtins(item)}
                for item in effect.classes
                if item.before != item.after
            ],
            "difference": Difference.between(one[0], other[0]).record(),
            "looks": self.looks,
        }

    def save(self, revision: int, name: str | None = None, reason: str = "") -> Edited:
        """Write the draft as a new run beside the one that is edited."""
        self.draft.check(revision)
        self.find_versions()
        if not self.draft.changes:
            raise SettingError("there is nothing to save: the draft is the run as it is")
        for one in self._versions:
            if one.changes == self.draft.changes:
                raise SettingError(f"this draft is saved already, as {one.name}")
        folder = RunFolder(self.run)
        now = folder.steady(lambda: PromptEnsemble.load(folder.ensemble_path))
        if now.fingerprint != self.bench.ensemble.fingerprint:
            raise RunError(
                f"the text of {self.run} is another than when the workbench was opened; open it again"
            )
        self.write_looks()
        target = self.run.resolve().parent / _checked_name(name or self._free_name())
        if target.exists():
            raise SettingError(f"there is {target.name} already: versions stay as they are")
        edited = edit_run(
            self.run,
            self.draft.changes,
            target,
            reason=reason,
            bench=self.bench,
            progress=False,
            finish=self.finish,
            **self.options,
        )
        self.find_versions()
        return edited

    def _free_name(self) -> str:
        home = self.run.resolve()
        number = 2
        while (home.parent / f"{home.name}-v{number}").exists():
            number += 1
        return f"{home.name}-v{number}"

    # --- growing ---------------------------------------------------------------------------------

    def ask(self, one: str, other: str) -> dict[str, list[str]]:
        """Ask the language model what tells two classes apart; nothing of the draft is touched."""
        if self.model is None:
            raise SettingError("no language model is configured: start with --model NAME")
        for name in (one, other):
            if name not in self.text.class_names:
                raise SettingError(f"there is no class {name!r}")
        questions = contrast_questions(one, other, _SUGGESTED)
        manner = Manner(workers=2, retries=Retries(attempts=2))
        cache = ReplyCache(self.folder / "replies.jsonl")
        done = generate_pool(questions, self.model, cache, per_class=_SUGGESTED, manner=manner)
        if not done.sentences:
            failed = [*done.answers.failed.values(), done.answers.stopped]
            why = next(filter(None, failed), "its replies held no sentences")
            raise RunError(f"the language model gave no sentences: {why}")
        return done.sentences

    def suggestions(self, sentences: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """Measure what each sentence would do if it were added, the best first."""
        found = []
        for name, texts in sentences.items():
            there = self.text.prompts(name) if name in self.text.class_names else None
            for text in texts:
                if there is None or text in there:
                    continue
                change = Change(kind="add", class_name=name, sentence=text, share=_SHARE)
                after = change.apply(self.text), (*self.draft.changes, change)
                self._look(after)
                effect = self.bench.between(self._now, after, 0)
                back = {old: new for new, old in self.bench.originals(after[1]).items()}
                figures = _figures(effect, back)
                found.append({"class": name, "text": text, "share": _SHARE, **figures})
        self.draft.write(self.folder)
        return sorted(found, key=lambda item: -((item["after"] or 0) - (item["before"] or 0)))


@dataclass(frozen=True)
class Version:
    """A run that was made of the one on the bench."""

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


def open_workbench(
    run: Path,
    bench: Bench,
    *,
    model: ModelSettings | None = None,
    finish: tuple[Callable[[Path], object], ...] = (),
    options: Mapping[str, Any] | None = None,
) -> Workbench:
    """Put a run on the workbench, with the edits of the last time that were not saved."""
    folder = draft_folder(run, bench.ensemble.fingerprint)
    folder.mkdir(parents=True, exist_ok=True)
    return Workbench(run, bench, folder, model, finish, options or {})


def _figures(effect: Effect, back: Mapping[str, str]) -> dict[str, Any]:
    return {
        "images": effect.images,
        "before": effect.before,
        "after": effect.after,
        "changed": effect.changed,
        "right": effect.mended,
        "wrong": effect.broken,
        "left_out": effect.left_out,
        "paying": [
            {
                "name": back.get(item.class_name, item.class_name),
                "count": item.count,
                "before": item.before,
                "after": item.after,
            }
            for item in effect.paying[:_PAYING]
        ],
        "more_paying": max(0, len(effect.paying) - _PAYING),
    }


def _flip(flip: Flip, back: Mapping[str, str]) -> dict[str, Any]:
    return {
        "image": flip.image,
        "label": back.get(flip.label, flip.label),
        "before": flip.before,
        "after": flip.after,
    }


def _checked_name(name: str) -> str:
    """Check the name of a version: a folder beside the run, and nowhere else."""
    if not re.fullmatch(r"[^\W_][\w .+-]{0,99}", name) or name.endswith((".", " ")):
        raise SettingError(
            f"{name!r} is no name for a version: letters, digits, and . _ - + between them"
        )
    return name

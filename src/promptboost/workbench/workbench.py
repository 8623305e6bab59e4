"""Workbench: a run being edited, measured after every edit; what the page of the browser shows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from promptboost.encoders.embedder import Embedder, embed_texts
from promptboost.errors import RunError, SettingError
from promptboost.llm.client import ModelSettings
from promptboost.llm.growth import contrast_sentences
from promptboost.model import PromptEnsemble
from promptboost.model.change import Change, apply_changes
from promptboost.model.difference import Difference
from promptboost.model.explanation import SHOWN, explain_rows
from promptboost.model.head import Head
from promptboost.run.bench import Bench, add_looks
from promptboost.run.draft import Draft, draft_folder, read_draft
from promptboost.run.edit import Edited, edit_run, edited_head
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Version, find_versions, free_name, version_folder
from promptboost.workbench.gallery import Gallery
from promptboost.workbench.panel import (
    EditedText,
    class_keys,
    class_records,
    effect_record,
    flip_records,
    names_now,
    reason_records,
)

#: Images of each kind that are shown of those with another answer.
_FLIPS = 24
#: Sentences that a language model is asked for, about each class of a pair, and their share if taken.
_SUGGESTED, _SHARE = 4, 0.1
THE_RUN, THE_DRAFT = "run", "draft"


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
        self._last: tuple[str, EditedText] | None = None
        self._versions: list[Version] = []
        self.gallery = Gallery(self.bench)
        self._looks = self.bench.lineage.looks
        self._seen: set[int] = set()
        self._head: tuple[int, Head, dict[str, NDArray[Any]]] | None = None
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
    def _now(self) -> EditedText:
        return self.text, self.draft.changes

    def _text_of(self, version: str) -> EditedText:
        if version == THE_DRAFT:
            return self._now
        if version == THE_RUN:
            return self.bench.ensemble, ()
        for one in self._versions:
            if one.name == version:
                return apply_changes(self.bench.ensemble, one.changes), one.changes
        raise SettingError(f"there is no version {version!r}")

    def _key(self, text: EditedText) -> int:
        return hash(class_keys(self.bench, text))

    def _look(self, text: EditedText) -> None:
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
        """Take looks that the run counts now out of the draft; killed in between, they count twice."""
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
        """Go on to another draft, one edit further, or without a text one back; on disk before all else."""
        before, line = self._now, self.text.history[-1:]
        texts = self._texts[:-1] if text is None else [*self._texts, text]
        key = self._key((texts[-1], draft.changes))
        if key not in self._seen:
            draft = msgspec.structs.replace(draft, looks=draft.looks + 1)
        draft.write(self.folder)
        self._seen.add(key)
        self.draft, self._texts = draft, texts
        if text is None:
            told = f"undone: {line[0]}" if line else "undone"
        else:
            told = "; ".join(text.history[len(before[0].history) :])
        self._last = told, before

    # --- figures ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything the page shows after an edit, as plain data."""
        effect = self.bench.between((self.bench.ensemble, ()), self._now, _FLIPS)
        back = names_now(self.bench, self._now)
        step = None
        if self._last is not None:
            told, before = self._last
            step = {"told": told, **effect_record(self.bench.between(before, self._now, 0), back)}
        return {
            "run": self.run.resolve().name,
            "encoder": self.bench.ensemble.encoder_id,
            "revision": self.draft.revision,
            "restored": self.restored,
            "looks": self.looks,
            "undo": len(self.draft.changes),
            "redo": len(self.draft.undone),
            "history": list(self.text.history[len(self.bench.ensemble.history) :]),
            "effect": {**effect_record(effect, back), "flips": flip_records(effect, back)},
            "step": step,
            "classes": class_records(self.bench, self._now, effect),
            "versions": [one.record() for one in self._versions],
            "saved": next(
                (one.name for one in self._versions if one.changes == self.draft.changes), None
            ),
            "next_version": free_name(self.run),
            "model": None if self.model is None else self.model.model,
        }

    def reasons(self) -> Iterator[dict[str, Any] | None]:
        """Yield None while the influence of each sentence is worked out, class by class; then all."""
        revision = self.draft.revision
        for record in reason_records(self.bench, self._now):
            yield record and {"revision": revision, **record}

    # --- images ----------------------------------------------------------------------------------

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
            name, row = self.gallery.taken(dropped)
        else:
            name = image or ""
            old, row = self.gallery.held_out(name)
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

    def _embedded(self) -> tuple[Head, dict[str, NDArray[Any]]]:
        """Return the text in the space of the images, and the row of each sentence."""
        if self._head is None or self._head[0] != self.draft.revision:
            texts = self.text.texts()
            rows = embed_texts(self.bench.scores.source, texts)
            made = edited_head(self.bench.scores.head, self.embedder, self.text, self.draft.changes)
            self._head = self.draft.revision, made, dict(zip(texts, rows, strict=True))
        return self._head[1], self._head[2]

    # --- versions --------------------------------------------------------------------------------

    def find_versions(self) -> None:
        """Look for the runs beside this one that were made of it by edits."""
        self._versions = find_versions(self.run, self.bench.ensemble, self.bench.lineage)

    def compare(self, before: str, after: str) -> dict[str, Any]:
        """Compare two versions: ``run``, ``draft``, or the name of a saved one."""
        self.find_versions()
        one, other = self._text_of(before), self._text_of(after)
        for text in (one, other):
            self._look(text)
        self.draft.write(self.folder)
        effect = self.bench.between(one, other, _FLIPS)
        back = names_now(self.bench, other)
        return {
            "before": before,
            "after": after,
            "effect": {**effect_record(effect, back), "flips": flip_records(effect, back)},
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
                f"the text of {self.run} has changed since the workbench was opened; open it again"
            )
        self.write_looks()
        target = version_folder(self.run, name or free_name(self.run))
        edited = edit_run(
            self.run,
            self.draft.changes,
            target,
            reason=reason,
            bench=self.bench,
            finish=self.finish,
            **self.options,
        )
        self.find_versions()
        return edited

    # --- growing ---------------------------------------------------------------------------------

    def ask(self, one: str, other: str) -> dict[str, list[str]]:
        """Ask the language model what tells two classes apart; nothing of the draft is touched."""
        if self.model is None:
            raise SettingError("no language model is configured: start with --model NAME")
        for name in (one, other):
            if name not in self.text.class_names:
                raise SettingError(f"there is no class {name!r}")
        replies = self.folder / "replies.jsonl"
        return contrast_sentences(one, other, _SUGGESTED, self.model, replies)

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
                back = names_now(self.bench, after)
                figures = effect_record(effect, back)
                found.append({"class": name, "text": text, "share": _SHARE, **figures})
        self.draft.write(self.folder)
        return sorted(found, key=lambda item: -((item["after"] or 0) - (item["before"] or 0)))


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

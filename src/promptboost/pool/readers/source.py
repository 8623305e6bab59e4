"""Readers of description files, and the sources of sentences they return."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from promptboost.errors import FileFormatError, PoolError, a_type
from promptboost.pool.templates import fill
from promptboost.pool.text import clean, is_listed

Phrase = Callable[[str, str], str]
"""Turns a class name and a text of a file into a sentence that names the class."""


@dataclass(frozen=True)
class Skipped:
    """A sentence that was left out, and the reason."""

    entry: str
    reason: str


@dataclass(frozen=True)
class Source:
    """One file or folder of sentences, read.

    Examples
    --------
    >>> source = Source("mine", "plain", Path("mine.json"), {"owl": ("large round eyes",)})
    >>> source.texts(["owl"], "barn_owl")
    ['large round eyes']
    """

    name: str  # the source of its prompts
    kind: str  # the format it was read in
    path: Path
    sentences: Mapping[str, tuple[str, ...]]  # by the names the file uses; empty lists stay empty
    templates: tuple[str, ...] = ()  # sentences with a {} that every class gets
    phrase: Phrase | None = None  # for files that do not name the class
    blank: Mapping[str, int] = field(default_factory=dict)  # blank sentences left out, by name
    skipped: tuple[Skipped, ...] = ()  # sentences left out for their control characters
    stray: tuple[str, ...] = ()  # files of a folder that are not of its format

    def texts(self, entries: Iterable[str], class_name: str) -> list[str]:
        """Return the sentences a class gets from its entries, in order."""
        filled = [fill(template, class_name) for template in self.templates]
        sentences = [sentence for entry in entries for sentence in self.sentences[entry]]
        if self.phrase is not None:
            sentences = [self.phrase(class_name, sentence) for sentence in sentences]
        return filled + sentences


@dataclass(frozen=True)
class Reader:
    """One format of files or folders of sentences.

    ``recognizes`` returns whether a path is of this format, by its folder, name or first lines.
    ``read`` takes the path, and the name of a dataset or None, and returns its sources.
    """

    kind: str
    recognizes: Callable[[Path], bool]
    read: Callable[[Path, str | None], tuple[Source, ...]]
    takes: Literal["file", "folder", "both"] = "file"


class SentenceCollector:
    """Collects the sentences of a file; counts those that are blank, lists those that are damaged.

    Released files hold blank lines and, rarely, control characters.
    """

    def __init__(self, where: str) -> None:
        self.sentences: dict[str, list[str]] = {}
        self.blank: dict[str, int] = {}
        self.skipped: list[Skipped] = []
        self._where = where

    def add(self, entry: object, sentences: object, at: str = "") -> None:
        """Add the sentences of one name; they follow those added before."""
        where = f"{self._where}, {at}" if at else self._where
        try:
            name = clean(entry, where="a class name")
        except PoolError as error:
            raise FileFormatError(f"{where}: {error}") from error
        if not is_listed(sentences):
            raise FileFormatError(
                f"{where}: the class {name!r} needs a list of sentences, not "
                f'{a_type(sentences)}: write ["sentence", …]'
            )
        collected = self.sentences.setdefault(name, [])
        for number, sentence in enumerate(sentences, start=1):
            label = f"sentence {number} of the class {name!r}"
            if not isinstance(sentence, str):
                raise FileFormatError(f"{where}: {label} must be a string, not {a_type(sentence)}")
            if not sentence.strip():
                self.blank[name] = self.blank.get(name, 0) + 1
                continue
            try:
                collected.append(clean(sentence, where=label))
            except PoolError as error:
                self.skipped.append(Skipped(name, str(error)))

    def source(
        self,
        name: str,
        kind: str,
        path: Path,
        *,
        phrase: Phrase | None = None,
        stray: Iterable[str] = (),
    ) -> Source:
        """Return the source with everything that was added."""
        if not self.sentences:
            raise FileFormatError(f"{self._where} holds no classes")
        return Source(
            name=name,
            kind=kind,
            path=path,
            sentences={entry: tuple(texts) for entry, texts in self.sentences.items()},
            phrase=phrase,
            blank=self.blank,
            skipped=tuple(self.skipped),
            stray=tuple(stray),
        )

"""What every reader makes: a source of sentences by the names a file uses; and what a reader is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from promptboost.errors import FileFormatError, PoolError, a_type
from promptboost.pool.templates import fill
from promptboost.pool.text import clean, is_listed

Phrase = Callable[[str, str], str]
"""From a class name and what a file holds to a sentence that names the class."""


@dataclass(frozen=True)
class Refused:
    """A sentence that was left out, and why."""

    entry: str
    why: str


@dataclass(frozen=True)
class Source:
    """One file or folder of sentences, read.

    Examples
    --------
    >>> source = Source("mine", "plain", Path("mine.json"), {"owl": ("large round eyes",)})
    >>> source.texts(["owl"], "barn_owl")
    ['large round eyes']
    """

    name: str  # what prompts from it say they come from
    kind: str  # the format it was read as
    path: Path
    sentences: Mapping[str, tuple[str, ...]]  # by the names the file uses; empty lists stay empty
    templates: tuple[str, ...] = ()  # sentences with a {} that every class gets
    phrase: Phrase | None = None  # for files that do not name the class
    blank: Mapping[str, int] = field(default_factory=dict)  # blank sentences left out, by name
    refused: tuple[Refused, ...] = ()  # sentences left out for their control characters
    stray: tuple[str, ...] = ()  # files of a folder that are not of its format, and were not read

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

    ``recognises`` tells by the place, the name or the first lines of a path whether it is of this
    format. ``read`` takes the path, and the name of a dataset or None, and returns the sources there.
    """

    kind: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, str | None], tuple[Source, ...]]
    takes: Literal["file", "folder", "both"] = "file"


class Gathering:
    """Collects the sentences of a file and leaves out, with a count, those nobody can use.

    Released files hold blank lines and, rarely, control characters. Refusing a whole file for
    them would help nobody; dropping them in silence would be worse.
    """

    def __init__(self, where: str) -> None:
        self.sentences: dict[str, list[str]] = {}
        self.blank: dict[str, int] = {}
        self.refused: list[Refused] = []
        self._where = where

    def add(self, entry: object, sentences: object, at: str = "") -> None:
        """Add the sentences of one name; a name that came before gets more of them."""
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
        kept = self.sentences.setdefault(name, [])
        for number, sentence in enumerate(sentences, start=1):
            label = f"sentence {number} of the class {name!r}"
            if not isinstance(sentence, str):
                raise FileFormatError(f"{where}: {label} must be a string, not {a_type(sentence)}")
            if not sentence.strip():
                self.blank[name] = self.blank.get(name, 0) + 1
                continue
            try:
                kept.append(clean(sentence, where=label))
            except PoolError as error:
                self.refused.append(Refused(name, str(error)))

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
            sentences={entry: tuple(kept) for entry, kept in self.sentences.items()},
            phrase=phrase,
            blank=self.blank,
            refused=tuple(self.refused),
            stray=tuple(stray),
        )

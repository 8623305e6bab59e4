"""Readers of description files, and the sources of sentences they return."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeGuard

from promptboost.errors import FileFormatError, PoolError, a_type
from promptboost.pool.templates import fill
from promptboost.pool.text import clean, is_listed

Phrase = Callable[[str, str], str]
"""Turns a class name and a text of a file into a sentence that names the class."""


def is_named(entry: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the value of a class has a noun phrase besides its sentences."""
    return isinstance(entry, Mapping) and isinstance(entry.get("name"), str)


@dataclass
class Source:
    """One file or folder of sentences, which readers :meth:`add`."""

    name: str  # the source of its prompts
    kind: str  # the format it was read in
    path: Path
    sentences: dict[str, list[str]] = field(default_factory=dict)  # by the names of the file
    templates: tuple[str, ...] = ()  # sentences with a {} that every class gets
    phrase: Phrase | None = None  # for files that do not name the class
    blank: dict[str, int] = field(default_factory=dict)  # blank sentences left out, by name
    skipped: list[str] = field(default_factory=list)  # names and reasons of damaged sentences
    stray: tuple[str, ...] = ()  # files of a folder that are not of its format
    phrases: dict[str, str] = field(default_factory=dict)  # noun phrases, by the names of the file

    def texts(self, entries: Iterable[str], class_name: str) -> list[str]:
        """Return the sentences of a class from its entries, in order."""
        filled = [fill(template, class_name) for template in self.templates]
        sentences = [sentence for entry in entries for sentence in self.sentences[entry]]
        if self.phrase is not None:
            sentences = [self.phrase(class_name, sentence) for sentence in sentences]
        return filled + sentences

    def add(self, entry: object, sentences: object, where: str | Path) -> None:
        """Append sentences to those of a name; `where` is used in errors.

        A mapping ``{"name": "a pug dog", "sentences": […]}`` also has a noun phrase for the class.
        """
        try:
            name = clean(entry, where="a class name")
            if is_named(sentences):
                phrase = clean(sentences["name"], where="a name")
                sentences = sentences.get("sentences", [])
                if (earlier := self.phrases.setdefault(name, phrase)) != phrase:
                    raise PoolError(
                        f"the class {name!r} has two names, {earlier!r} and {phrase!r}; remove one"
                    )
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
                self.skipped.append(f"{name}: {error}")

    def filled(self, content: object) -> Self:
        """Add the content of a JSON file, ``{"class": ["sentence", …]}``, and return the source."""
        if not isinstance(content, dict):
            raise FileFormatError(
                f'{self.path} holds {a_type(content)}; it should be {{"class": ["sentence", …]}}'
            )
        for entry, sentences in content.items():
            if (name := " ".join(entry.split())) in self.sentences:
                raise FileFormatError(f"{self.path}: {name!r} occurs twice; join the two lists")
            self.add(entry, sentences, self.path)
        self.check_filled()
        return self

    def check_filled(self) -> None:
        """Raise if the file has no classes."""
        if not self.sentences:
            raise FileFormatError(f"{self.path} holds no classes")


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

"""Saved pools: a line about the pool, then one prompt per line, as JSON Lines."""

import json
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from promptboost.errors import FileFormatError, PoolError
from promptboost.io import load_json, open_regular, replacing, unique
from promptboost.pool.pool import ClassPrompts, Prompt, PromptPool
from promptboost.pool.templates import check_templates
from promptboost.pool.text import MAX_CHARACTERS, check_class_names, control_character, is_visible

#: The version of the lines; a change that older versions cannot read makes it larger.
SCHEMA = 1
#: The fields of a line besides class and text; the first is always there.
FIELDS = ("source", "template", "sentence", "origin")

_LINES = (".jsonl", ".ndjson")
# json.loads and json.dumps with options would create these for each line.
_decode = json.JSONDecoder(object_pairs_hook=unique).decode
_encode = json.JSONEncoder(ensure_ascii=False).encode
# Of a text that joins a template, the phrase in it, and a sentence.
_MAX_CHARACTERS = 4 * MAX_CHARACTERS
# Marks the first line of a pool, within so many bytes: a line can be of any length.
_MARK, _FIRST = b'"promptboost_pool"', 1000


def save_pool(pool: PromptPool, path: str | Path) -> None:
    """Write a pool to a ``.jsonl`` file, whole or not at all; one prompt at a time.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.pool import build_pool
    >>> pool = build_pool(["owl"], templates=["a {}."], descriptions={"owl": ["round eyes"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pool(pool, Path(folder, "birds.jsonl"))
    ...     load_pool(Path(folder, "birds.jsonl")) == pool
    True
    """
    path = Path(path)
    if path.suffix.lower() not in _LINES:
        raise PoolError(f"{path}: the name of a pool ends in .jsonl")
    try:
        with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(_lines(pool))
    except OSError as error:
        raise PoolError(f"cannot write the pool {path}: {error.strerror}") from error


def load_pool(path: str | Path) -> PromptPool:
    """Read a pool that :func:`save_pool` wrote as JSON Lines."""
    with _opened(path) as file:
        return PoolReader(str(path)).read(file)


def is_saved_pool(path: str | Path) -> bool:
    """Return whether a file is a pool saved as JSON Lines, by its first line."""
    path = Path(path)
    if path.suffix.lower() not in _LINES or not path.is_file():
        return False
    with _opened(path) as file:
        return _MARK in file.readline(_FIRST)


def saved_templates(path: str | Path) -> tuple[str, ...]:
    """Return the templates of a saved pool; only its first line is read."""
    with _opened(path) as file:
        return PoolReader(str(path)).first_line(file)[2]


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise PoolError(f"cannot read the pool {path}: {error.strerror}") from error


def _lines(pool: PromptPool) -> Iterator[str]:
    header = {
        "promptboost_pool": SCHEMA,
        "class_names": pool.class_names,
        "templates": pool.templates,
        # Detects a file that was cut off between two lines.
        "prompts": pool.size,
        "missing": pool.missing,
        "unused": pool.unused,
    }
    named = zip(pool.class_names, pool.phrases, strict=True)
    if phrases := {name: phrase for name, phrase in named if phrase != name}:
        header["phrases"] = phrases
    yield _encode(header) + "\n"
    for name in pool.class_names:
        for prompt in pool.prompts(name):
            line = {"class": name, "text": prompt.text}
            for field in FIELDS:
                if (value := getattr(prompt, field)) is not None:
                    line[field] = value
            yield _encode(line) + "\n"


class PoolReader:
    """Reads the JSON Lines of one file; errors contain the number of the line."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._number = 1

    def first_line(
        self, lines: IO[bytes]
    ) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
        """Read the first line: all of it, the class names and the templates."""
        header = self._header(self._parse(lines.readline()))
        try:
            names = check_class_names(header["class_names"])
            return header, names, check_templates(header["templates"])
        except PoolError as error:
            raise self._bad(f"cannot be used: {error}") from error

    def read(self, lines: IO[bytes]) -> PromptPool:
        """Read everything."""
        header, names, templates = self.first_line(lines)
        phrases = header.get("phrases", {})
        prompts = {name: ClassPrompts(phrases.get(name, name)) for name in names}
        count = 0
        for self._number, line in enumerate(lines, start=2):
            if line.strip():
                name, prompt = self._prompt(self._parse(line), prompts)
                prompts[name].append(prompt)
                count += 1
        if count != header["prompts"]:
            raise FileFormatError(
                f"{self._file} ends after {count} prompts instead of {header['prompts']}, the number in "
                "its first line: copy or save it again, or, if you edited it, correct that number"
            )
        for name in names:
            if not prompts[name]:
                raise FileFormatError(
                    f"{self._file} has no prompts for the class {name!r}: add one"
                )
        missing, unused = tuple(header["missing"]), tuple(header["unused"])
        return PromptPool(prompts, templates, missing, unused)

    def _header(self, line: Any) -> dict[str, Any]:
        header: dict[str, Any] = line if isinstance(line, dict) else {}
        schema = header.get("promptboost_pool")
        if type(schema) is not int or schema < 1:
            raise self._bad(
                'is not that of a saved pool, {"promptboost_pool": 1, …}; sentences of your own '
                "become a pool with promptboost pool build, or with "
                "read_pool(path, class_names)"
            )
        if schema > SCHEMA:
            raise self._bad(
                f"has version {schema}, and this promptboost reads up to {SCHEMA}: "
                "pip install --upgrade promptboost"
            )
        for key in ("class_names", "templates", "missing", "unused"):
            value = header.get(key)
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise self._bad(f'needs "{key}": a list of texts')
        phrases = header.get("phrases", {})
        if not isinstance(phrases, dict) or not all(
            isinstance(text, str) and text.strip() and not control_character(text)
            for text in phrases.values()
        ):
            raise self._bad('needs "phrases": a text for each class, without control characters')
        if type(header.get("prompts")) is not int:
            raise self._bad('needs "prompts": the number of lines that follow')
        return header

    def _prompt(self, line: Any, classes: Container[str]) -> tuple[str, Prompt]:
        if not isinstance(line, dict):
            raise self._bad('should be {"class": "…", "text": "…", "source": "…"}')
        if unknown := line.keys() - {"class", "text", *FIELDS}:
            raise self._bad(f"has the unknown field {sorted(unknown)[0]!r}; remove it")
        for field in dict.fromkeys(("class", "text", "source", *line)):
            value = line.get(field)
            if not isinstance(value, str) or not is_visible(value):
                raise self._bad(f'needs "{field}": a text that is not empty')
            if control := control_character(value):
                raise self._bad(f'has the control character {control} in "{field}"; remove it')
            if len(value) > _MAX_CHARACTERS:
                raise self._bad(f'has {len(value):,} characters in "{field}"; shorten or split it')
        if line["class"] not in classes:
            raise self._bad(f"is about {line['class']!r}, no class of the first line; add it there")
        values = {field: line.get(field) for field in FIELDS[1:]}
        return line["class"], Prompt(line["text"], line["source"], **values)

    def _parse(self, line: bytes) -> Any:
        try:
            text = line.decode("utf-8-sig" if self._number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise self._bad(f"is not UTF-8 (byte {error.start}); save the file as UTF-8") from error
        try:
            return _decode(text)
        except (ValueError, RecursionError):  # raised again, with the line
            return load_json(text, f"{self._file}, line {self._number},")

    def _bad(self, problem: str) -> FileFormatError:
        return FileFormatError(f"{self._file}, line {self._number}, {problem}")

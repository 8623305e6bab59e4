"""Saved pools: everything as JSON Lines, or the texts alone as ``{"class": ["sentence", …]}``."""

import json
from collections.abc import Container, Iterator
from pathlib import Path
from typing import IO, Any

from promptboost.errors import FileFormatError, PoolError
from promptboost.io import load_json, open_regular, replacing, unique
from promptboost.pool.pool import ClassPrompts, Prompt, PromptPool
from promptboost.pool.templates import check_templates
from promptboost.pool.text import check_class_names, control_character

#: The version of the lines; a change that older versions cannot read makes it larger.
SCHEMA = 1
#: The fields of a line besides class and text; the first is always there.
FIELDS = ("source", "template", "sentence", "origin")

_LINES = (".jsonl", ".ndjson")
# json.loads and json.dumps with options would create these for each line.
_decode = json.JSONDecoder(object_pairs_hook=unique).decode
_encode = json.JSONEncoder(ensure_ascii=False).encode
# Marks the first line of a pool, within so many bytes: a line can be of any length.
_MARK, _FIRST = b'"promptboost_pool"', 1000


def save_pool(pool: PromptPool, path: str | Path) -> None:
    """Write a pool to a file, whole or not at all; one prompt at a time.

    A ``.jsonl`` file holds everything: a line about the pool, then one prompt per line. A ``.json``
    file holds ``{"class": ["sentence", …]}`` only, which other programs read.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.pool import build_pool
    >>> pool = build_pool(["owl"], templates=["a {}."], descriptions={"owl": ["round eyes"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pool(pool, Path(folder, "birds.jsonl"))
    ...     save_pool(pool, Path(folder, "birds.json"))
    ...     load_pool(Path(folder, "birds.jsonl")) == pool
    ...     load_pool(Path(folder, "birds.json")).texts("owl")
    True
    ('an owl.', 'round eyes')
    """
    path = Path(path)
    as_lines = keeps_everything(path)
    try:
        with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
            if as_lines:
                file.writelines(_lines(pool))
            else:
                _write_object(pool, file)
    except OSError as error:
        raise PoolError(f"cannot write the pool {path}: {error.strerror}") from error


def load_pool(path: str | Path) -> PromptPool:
    """Read a pool that :func:`save_pool` wrote.

    ``.json`` files have no templates, only sentences. To join them with templates, pass them to
    :func:`build_pool`.
    """
    path = Path(path)
    if keeps_everything(path):
        try:
            with open_regular(path) as file:
                return PoolReader(str(path)).read(file)
        except OSError as error:
            raise PoolError(f"cannot read the pool {path}: {error.strerror}") from error
    from promptboost.pool.readers import read_descriptions

    prompts = {}
    for name, texts in read_descriptions(path).items():
        if not texts:
            raise FileFormatError(f"{path}: the class {name!r} has no sentences; add one")
        prompts[name] = ClassPrompts(name)
        prompts[name].extend_product(f"descriptions:{path.name}", None, texts)
    return PromptPool(check_class_names(tuple(prompts)), (), tuple(prompts.values()))


def is_saved_pool(path: str | Path) -> bool:
    """Return whether a file is a pool saved as JSON Lines, by its first line."""
    path = Path(path)
    if path.suffix.lower() not in _LINES or not path.is_file():
        return False
    try:
        with open_regular(path) as file:
            return _MARK in file.readline(_FIRST)
    except OSError as error:
        raise PoolError(f"cannot read the pool {path}: {error.strerror}") from error


def saved_templates(path: str | Path) -> tuple[str, ...]:
    """Return the templates of a saved pool; only its first line is read."""
    try:
        with open_regular(path) as file:
            return PoolReader(str(path)).first_line(file)[2]
    except OSError as error:
        raise PoolError(f"cannot read the pool {path}: {error.strerror}") from error


def keeps_everything(path: Path) -> bool:
    """Return whether a file of this name keeps all of a pool, or its sentences alone."""
    suffix = path.suffix.lower()
    if suffix not in (*_LINES, ".json"):
        raise PoolError(
            f"{path}: the name of a pool ends in .jsonl (everything) or .json (class names and "
            "sentences only)"
        )
    return suffix in _LINES


def _lines(pool: PromptPool) -> Iterator[str]:
    header = {
        "promptboost_pool": SCHEMA,
        "class_names": pool.class_names,
        "templates": pool.templates,
        # Detects a file that was cut off between two lines.
        "prompts": sum(map(len, pool.prompts_by_class)),
        "missing": pool.missing,
        "unused": pool.unused,
    }
    yield _encode(header) + "\n"
    for name in pool.class_names:
        for prompt in pool.prompts(name):
            line = {"class": name, "text": prompt.text}
            for field in FIELDS:
                if (value := getattr(prompt, field)) is not None:
                    line[field] = value
            yield _encode(line) + "\n"


def _write_object(pool: PromptPool, file: IO[str]) -> None:
    separator = "{\n"
    for name in pool.class_names:
        texts = _encode(list(pool.texts(name)))
        file.write(f"{separator}{_encode(name)}: {texts}")
        separator = ",\n"
    file.write("\n}\n")


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
        names = self._checked(check_class_names, header["class_names"])
        return header, names, self._checked(check_templates, header["templates"])

    def read(self, lines: IO[bytes]) -> PromptPool:
        """Read everything."""
        header, names, templates = self.first_line(lines)
        prompts = {name: ClassPrompts(name) for name in names}
        count = 0
        for self._number, line in enumerate(lines, start=2):
            if line.strip():
                name, prompt = self._prompt(self._parse(line), prompts)
                prompts[name].append(prompt)
                count += 1
        if count != header["prompts"]:
            raise FileFormatError(
                f"{self._file} ends after {count} prompts, and its first line says "
                f"{header['prompts']}: copy or save it again, or, if you edited it, write "
                f'"prompts": {count} in its first line'
            )
        for name in names:
            if not prompts[name]:
                raise FileFormatError(
                    f"{self._file} has no prompts for the class {name!r}: add one"
                )
        missing, unused = tuple(header["missing"]), tuple(header["unused"])
        return PromptPool(names, templates, tuple(prompts.values()), missing, unused)

    def _header(self, line: Any) -> dict[str, Any]:
        header: dict[str, Any] = line if isinstance(line, dict) else {}
        schema = header.get("promptboost_pool")
        if type(schema) is not int or schema < 1:
            raise self._bad(
                'is not that of a saved pool, {"promptboost_pool": 1, …}; sentences of your own '
                "become a pool with promptboost pool build, or with "
                "build_pool(class_names, descriptions=read_descriptions(path))"
            )
        if schema > SCHEMA:
            raise self._bad(
                f"says version {schema}, and this promptboost reads up to {SCHEMA}: "
                "pip install --upgrade promptboost"
            )
        for key in ("class_names", "templates", "missing", "unused"):
            value = header.get(key)
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise self._bad(f'needs "{key}": a list of texts')
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
            if not isinstance(value, str) or not value.strip():
                raise self._bad(f'needs "{field}": a text that is not empty')
            if control := control_character(value):
                raise self._bad(f'has the control character {control} in "{field}"; remove it')
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

    def _checked(self, check: Any, values: list[str]) -> tuple[str, ...]:
        try:
            result: tuple[str, ...] = check(values)
        except PoolError as error:
            raise self._bad(f"cannot be used: {error}") from error
        return result

    def _bad(self, problem: str) -> FileFormatError:
        return FileFormatError(f"{self._file}, line {self._number}, {problem}")

"""Pools in files: all of a pool as JSON Lines, or its texts as the JSON the field uses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from promptboost.errors import FileFormatError, PoolError
from promptboost.files import replacing
from promptboost.pool.build import check_class_names
from promptboost.pool.compact import ClassPrompts
from promptboost.pool.descriptions import read_descriptions
from promptboost.pool.pool import PromptPool
from promptboost.pool.products import sentences_of
from promptboost.pool.saved_lines import FIELDS, SCHEMA, PoolReader

__all__ = [
    "SCHEMA",
    "is_saved_pool",
    "keeps_everything",
    "load_pool",
    "save_pool",
    "saved_templates",
]

_LINES = (".jsonl", ".ndjson")
# Made once: json.dumps with options makes it anew for each line.
_encode = json.JSONEncoder(ensure_ascii=False).encode
# What only the first line of a pool has, and within how many bytes: a line can be of any length.
_MARK, _FIRST = b'"promptboost_pool"', 1000


def save_pool(pool: PromptPool, path: str | Path) -> None:
    """Write a pool to a file, whole or not at all.

    Parameters
    ----------
    pool : PromptPool
        What to write. Prompts are made one by one, so it may be larger than memory.
    path : path-like
        A name that ends in ``.jsonl`` keeps everything: after a line about the pool, one prompt
        a line. One that ends in ``.json`` keeps ``{"class": ["sentence", …]}`` only, which other
        programs read.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.pool import build_pool
    >>> pool = build_pool(["owl"], templates=["a {}."], descriptions={"owl": ["round eyes"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pool(pool, Path(folder, "birds.jsonl"))
    ...     save_pool(pool, Path(folder, "birds.json"))
    ...     print(Path(folder, "birds.jsonl").read_text().splitlines()[-1])
    ...     load_pool(Path(folder, "birds.jsonl")) == pool
    ...     load_pool(Path(folder, "birds.json")).texts("owl")
    {"class": "owl", "text": "round eyes", "source": "descriptions", "sentence": "round eyes"}
    True
    ('an owl.', 'round eyes')
    """
    path = Path(path)
    as_lines = keeps_everything(path)
    try:
        with replacing(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
            if as_lines:
                file.writelines(_lines(pool))
            else:
                _write_object(pool, file)
    except OSError as error:
        raise PoolError(f"cannot write the pool {path}: {error.strerror}") from error


def load_pool(path: str | Path) -> PromptPool:
    """Read a pool that :func:`save_pool` wrote.

    ``.json`` files have no templates: what they hold is taken as sentences, as it is. To join
    them with templates, give them to :func:`build_pool`.

    Raises
    ------
    PoolError
        If the file cannot be opened.
    FileFormatError
        If it is cut off, of a later version, or holds something else; the message has the line.
    """
    path = Path(path)
    if keeps_everything(path):
        try:
            with path.open("rb") as file:
                return PoolReader(str(path)).read(file)
        except OSError as error:
            raise PoolError(f"cannot read the pool {path}: {error.strerror}") from error
    sentences = read_descriptions(path)
    for name, own in sentences.items():
        if not own:
            raise FileFormatError(f"{path}: the class {name!r} has no sentences; add one")
    source = f"descriptions:{path.name}"
    prompts = tuple(ClassPrompts([sentences_of(source, own)]) for own in sentences.values())
    return PromptPool(check_class_names(tuple(sentences)), (), prompts)


def is_saved_pool(path: str | Path) -> bool:
    """Say whether a file is a pool that :func:`save_pool` wrote as JSON Lines, by its first line.

    Examples
    --------
    >>> is_saved_pool("sentences.json")
    False
    """
    path = Path(path)
    if path.suffix.lower() not in _LINES or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return _MARK in file.readline(_FIRST)
    except OSError as error:
        raise PoolError(f"cannot read the pool {path}: {error.strerror}") from error


def saved_templates(path: str | Path) -> tuple[str, ...]:
    """Give the templates of a saved pool by its first line alone, however many prompts follow."""
    try:
        with Path(path).open("rb") as file:
            return PoolReader(str(path)).first_line(file)[2]
    except OSError as error:
        raise PoolError(f"cannot read the pool {path}: {error.strerror}") from error


def keeps_everything(path: Path) -> bool:
    """Say by the name of a file whether it keeps all of a pool or its sentences alone.

    Examples
    --------
    >>> keeps_everything(Path("birds.jsonl")), keeps_everything(Path("birds.json"))
    (True, False)
    """
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
        # The number tells a file that was cut off between two lines from a whole one.
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
    between = "{\n"
    for name in pool.class_names:
        texts = _encode(list(pool.texts(name)))
        file.write(f"{between}{_encode(name)}: {texts}")
        between = ",\n"
    file.write("\n}\n")

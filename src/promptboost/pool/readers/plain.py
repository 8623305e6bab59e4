"""User files: JSON, JSON Lines, CSV with the columns class and sentence, tabbed text, saved pools.

JSON values ``{"name": "a pug dog", "sentences": […]}`` and a column ``name`` give the noun phrase of a
class.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from promptboost.data.manifest import manifest_rows
from promptboost.errors import DataError, FileFormatError
from promptboost.io import read_text
from promptboost.pool.io import is_saved_pool, load_pool
from promptboost.pool.readers.released import json_of
from promptboost.pool.readers.source import Reader, Source

_TABLES, _TABBED = (".csv", ".jsonl", ".ndjson"), (".tsv", ".txt")
_ENDINGS = (".json", *_TABLES, *_TABBED)


def _read(path: Path, dataset: str | None) -> tuple[Source, ...]:
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise FileFormatError(
            f"{path} should end in {', '.join(_ENDINGS)}, or be of another --kind"
        )
    source = Source(path.name, "plain", path)
    if ending == ".json":
        return (source.filled(json_of(path)),)
    try:
        for where, name, sentences in (_tabbed if ending in _TABBED else _table)(path):
            source.add(name, sentences, where)
    except DataError as error:
        raise FileFormatError(str(error)) from error
    source.check_filled()
    return (source,)


def _tabbed(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the place, class and sentence of each line."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            name, tab, sentence = line.partition("\t")
            if not tab:
                raise FileFormatError(
                    f"{path}, line {number}, has no tab: write the class, a tab, the sentence"
                )
            yield f"{path}, line {number}", name, [sentence]


def _table(path: Path) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place, class and sentence of each row."""
    # newline="" keeps line ends as they are: csv itself must see those inside quotes.
    lines = io.StringIO(read_text(path), newline="")
    for where, row in manifest_rows(lines, str(path), ("class",), ("text", "sentence")):
        text = row.get("sentence", row.get("text"))
        if text is None:
            raise FileFormatError(f"{where} has no sentence; it needs class and sentence")
        named = isinstance(row.get("name"), str) and row["name"].strip()
        yield where, row["class"], {"name": row["name"], "sentences": [text]} if named else [text]


PLAIN = Reader("plain", lambda path: path.is_file() and path.suffix.lower() in _ENDINGS, _read)


def _read_saved(path: Path, dataset: str | None) -> tuple[Source, ...]:
    """Read the sources of a saved pool, the templates first."""
    pool = load_pool(path)
    phrases = dict(zip(pool.class_names, pool.phrases, strict=True))
    sources: dict[str, Source] = {}
    if pool.templates:
        sources["template"] = Source("template", "pool", path, templates=pool.templates)
    for name in pool.class_names:
        texts_of: dict[str, dict[str, None]] = {}
        for prompt in pool.prompts(name):
            if prompt.source == "template" and prompt.template in pool.templates:
                continue  # added for every class
            source, text = prompt.source, prompt.text
            if source in ("template", "concat"):  # not a source of sentences
                source, text = prompt.origin or "descriptions", prompt.sentence or text
            texts_of.setdefault(source, {})[text] = None
        for source, texts in texts_of.items():
            read = sources.setdefault(source, Source(source, "pool", path))
            read.sentences[name] = list(texts)
            if phrases[name] != name:
                read.phrases[name] = phrases[name]
    return tuple(sources.values())


SAVED = Reader("pool", is_saved_pool, _read_saved)

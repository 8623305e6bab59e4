"""User files: JSON, JSON Lines, CSV with the columns class and sentence, tabbed text, saved pools.

A saved pool is read as its templates, and its sentences by source. ``build_pool`` makes its
concatenations again.
"""

import csv
import io
from collections.abc import Callable
from pathlib import Path

from promptboost.errors import FileFormatError
from promptboost.io import load_json, read_text
from promptboost.pool.io import is_saved_pool, load_pool
from promptboost.pool.readers.released import read_mapping
from promptboost.pool.readers.source import Reader, SentenceCollector, Source

_TEXT_COLUMNS = ("sentence", "text")


def _json_lines(path: Path) -> Source:
    collector = SentenceCollector(str(path))
    # Not splitlines(): JSON strings may hold U+2028 and the like unescaped.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            record = load_json(line, f"{path}, line {number},")
            if not isinstance(record, dict) or not {"class", "text"} <= record.keys():
                raise FileFormatError(
                    f'{path}, line {number}, should be {{"class": "…", "text": "…"}}'
                )
            collector.add(record["class"], [record["text"]], at=f"line {number}")
    return collector.source(path.name, "plain", path)


def _csv(path: Path) -> Source:
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    collector = SentenceCollector(str(path))
    try:
        header = [cell.strip().lower() for cell in next(rows, [])]
        text_column = next((name for name in _TEXT_COLUMNS if name in header), None)
        if "class" not in header or text_column is None:
            raise FileFormatError(
                f"{path} needs the columns class and sentence in its first line; it has "
                f"{', '.join(map(repr, header)) or 'nothing'}"
            )
        if twice := [name for name in ("class", *_TEXT_COLUMNS) if header.count(name) > 1]:
            raise FileFormatError(
                f"{path} has the column {twice[0]} {header.count(twice[0])} times; write one sentence "
                "a line"
            )
        name_cell, text_cell = header.index("class"), header.index(text_column)
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            at = f"line {rows.line_num}"
            if len(row) != len(header):
                # More are a sentence whose commas are not quoted: all behind the first would be lost.
                raise FileFormatError(
                    f"{path}, {at}, has {len(row)} cells under {len(header)} columns; put quotes around a "
                    "sentence that has a comma in it"
                )
            collector.add(row[name_cell], [row[text_cell]], at=at)
    except csv.Error as error:
        raise FileFormatError(f"{path}, line {rows.line_num}: {error}") from error
    return collector.source(path.name, "plain", path)


def _tabbed(path: Path) -> Source:
    collector = SentenceCollector(str(path))
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        entry, tab, sentence = line.partition("\t")
        if not tab:
            raise FileFormatError(
                f"{path}, line {number}, has no tab: write the class, a tab, the sentence"
            )
        collector.add(entry, [sentence], at=f"line {number}")
    return collector.source(path.name, "plain", path)


_BY_ENDING: dict[str, Callable[[Path], Source]] = {
    ".json": lambda path: read_mapping(path, path.name, "plain"),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _csv,
    ".tsv": _tabbed,
    ".txt": _tabbed,
}


def _recognizes(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in _BY_ENDING


def _read(path: Path, dataset: str | None) -> tuple[Source, ...]:
    read = _BY_ENDING.get(path.suffix.lower())
    if read is None:
        endings = ", ".join(_BY_ENDING)
        raise FileFormatError(f"{path} should end in {endings}, or be of another --kind")
    return (read(path),)


PLAIN = Reader("plain", _recognizes, _read)


def _read_saved(path: Path, dataset: str | None) -> tuple[Source, ...]:
    """Read one source for each that the prompts name, the templates first."""
    pool = load_pool(path)
    texts_of: dict[str, dict[str, dict[str, None]]] = {}
    for name in pool.class_names:
        for prompt in pool.prompts(name):
            if prompt.source == "template" and prompt.template in pool.templates:
                continue  # every class gets those
            source, text = prompt.source, prompt.text
            if source in ("template", "concat"):  # what others make, not where words come from
                source, text = prompt.origin or "descriptions", prompt.sentence or text
            texts_of.setdefault(source, {}).setdefault(name, {})[text] = None
    sources = [
        Source(source, "pool", path, {name: tuple(texts) for name, texts in by_class.items()})
        for source, by_class in texts_of.items()
    ]
    if pool.templates:
        sources.insert(0, Source("template", "pool", path, {}, templates=pool.templates))
    return tuple(sources)


SAVED = Reader("pool", is_saved_pool, _read_saved)

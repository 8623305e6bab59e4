"""Files of sentences about classes, and how they meet the class names of a dataset."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Any

from promptboost.errors import FileFormatError, PoolError
from promptboost.files import decode, load_json, read_text, unique
from promptboost.pool.text import clean, name_key

__all__ = ["DescriptionMatch", "emoji_descriptions", "match_descriptions", "read_descriptions"]

_JSON_LINES = {".jsonl", ".ndjson"}


@dataclass(frozen=True)
class DescriptionMatch:
    """Which sentences belong to which class, and what found no partner.

    Attributes
    ----------
    matched : dict of str to list of str
        The sentences of each class that has some, by the name the dataset uses.
    missing : tuple of str
        Classes without a sentence.
    unused : tuple of str
        Names in the descriptions that are no class.
    """

    matched: dict[str, list[str]]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def read_descriptions(path: str | Path) -> dict[str, list[str]]:
    r"""Read sentences about classes from a JSON or JSON Lines file.

    Parameters
    ----------
    path : path-like
        Either ``{"class": ["sentence", …], …}``, or, if the name ends in ``.jsonl``, one
        ``{"class": "…", "text": "…"}`` a line.

    Returns
    -------
    dict of str to list of str
        In the order of the file.

    Raises
    ------
    PoolError
        If the file cannot be opened.
    FileFormatError
        If it is not UTF-8, is cut off, or holds something else.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "mine.json")
    ...     _ = path.write_text(json.dumps({"owl": ["large round eyes", "a hooked beak"]}))
    ...     read_descriptions(path)
    {'owl': ['large round eyes', 'a hooked beak']}
    """
    path = Path(path)
    return _parse(read_text(path), str(path), lines=path.suffix.lower() in _JSON_LINES)


def emoji_descriptions() -> dict[str, list[str]]:
    """Return the sentences promptboost comes with, for the 20 classes of the emoji dataset.

    Examples
    --------
    >>> sentences = emoji_descriptions()
    >>> len(sentences), min(map(len, sentences.values())) >= 40
    (20, True)
    """
    file = resources.files("promptboost.pool") / "data" / "emoji.json"
    return _parse(decode(file.read_bytes(), "emoji.json"), "emoji.json", lines=False)


def match_descriptions(
    class_names: Sequence[str], descriptions: Mapping[str, Sequence[str]]
) -> DescriptionMatch:
    """Find the sentences of each class by its name.

    The same name wins; else names that differ only in case, underscores or hyphens are the same.
    Nothing looser is tried. Where two names of the file would fit one class, or one name two
    classes, that is an error and not a guess.

    Examples
    --------
    >>> match_descriptions(["hot_dog", "pizza"], {"Hot dog": ["a long bun"], "sushi": ["rice"]})
    DescriptionMatch(matched={'hot_dog': ['a long bun']}, missing=('pizza',), unused=('sushi',))
    """
    entries: dict[str, list[str]] = {}
    for entry in descriptions:
        entries.setdefault(name_key(entry), []).append(entry)
    matched: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for name in class_names:
        key = _key_for(name, descriptions, entries.get(name_key(name), []))
        if key is None:
            continue
        if key in owner:
            raise PoolError(
                f"the descriptions of {key!r} fit two classes, {owner[key]!r} and {name!r}: "
                "rename one class, or give each its own entry with the same spelling"
            )
        owner[key] = name
        if sentences := _check_sentences(descriptions[key], f"the class {key!r}"):
            matched[name] = sentences
    return DescriptionMatch(
        matched=matched,
        missing=tuple(name for name in class_names if name not in matched),
        unused=tuple(key for key in descriptions if key not in owner),
    )


def _key_for(
    name: str, descriptions: Mapping[str, Sequence[str]], candidates: Sequence[str]
) -> str | None:
    if name in descriptions:
        return name
    if len(candidates) > 1:
        raise PoolError(
            f"several entries of the descriptions fit the class {name!r}: "
            f"{', '.join(map(repr, candidates))}; spell one of them exactly like the class"
        )
    return candidates[0] if candidates else None


def _parse(text: str, file: str, *, lines: bool) -> dict[str, list[str]]:
    try:
        return _from_lines(text, file) if lines else _from_object(load_json(text, file), file)
    except PoolError as error:
        raise FileFormatError(
            f"{file}: {error}; to have blank and damaged sentences left out, type: "
            f"promptboost pool build {quote(file)} --classes DATA -o clean.json"
        ) from error


def _from_object(loaded: Any, file: str) -> dict[str, list[str]]:
    if not isinstance(loaded, dict):
        raise FileFormatError(
            f'{file} holds a {type(loaded).__name__}; it should be {{"class": ["sentence", …]}}'
        )
    if not loaded:
        raise FileFormatError(f"{file} holds no classes")
    return unique(
        [
            (clean(name, where="a class name"), _check_sentences(sentences, f"the class {name!r}"))
            for name, sentences in loaded.items()
        ]
    )


def _from_lines(text: str, file: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    # Not splitlines(): JSON strings may hold U+2028 and the like unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        record = load_json(line, f"{file}, line {number},")
        if not isinstance(record, dict) or not {"class", "text"} <= record.keys():
            raise FileFormatError(f'{file}, line {number}, should be {{"class": "…", "text": "…"}}')
        name = clean(record["class"], where=f"the class of line {number}")
        sentence = clean(record["text"], where=f"the text of line {number}")
        found.setdefault(name, []).append(sentence)
    if not found:
        raise FileFormatError(f"{file} holds no sentences")
    return found


def _check_sentences(sentences: object, owner: str) -> list[str]:
    if isinstance(sentences, str) or not isinstance(sentences, Iterable):
        raise PoolError(
            f"{owner} needs a list of sentences, not a {type(sentences).__name__}: "
            'write ["sentence", …]'
        )
    return [
        clean(sentence, where=f"sentence {number} of {owner}")
        for number, sentence in enumerate(sentences, start=1)
    ]

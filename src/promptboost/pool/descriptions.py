"""Sentences about classes: read from a file of one's own, and given to the classes they name."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from shlex import quote

from promptboost.errors import FileFormatError, PoolError, a_type
from promptboost.pool.names import resolve
from promptboost.pool.text import clean


def read_descriptions(path: str | Path) -> dict[str, list[str]]:
    r"""Read sentences about classes from a file of one's own, all of which must be good.

    :func:`read_sources` reads the same files, and those that others released, and leaves out what
    nobody can use.

    The file is ``{"class": ["sentence", …], …}``; or, if its name ends in ``.jsonl``, one
    ``{"class": "…", "text": "…"}`` a line; or a table in ``.csv``, ``.tsv`` or ``.txt``.

    Examples
    --------
    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.json")
    ...     _ = path.write_text(json.dumps({"owl": ["large round eyes", "a hooked beak"]}))
    ...     read_descriptions(path)
    {'owl': ['large round eyes', 'a hooked beak']}
    """
    from promptboost.pool.readers import read_source

    path = Path(path)
    if not path.is_file():
        raise PoolError(f"cannot read the descriptions {path}: No such file")
    source = read_source(path, "plain")
    problems = [item.why for item in source.refused]
    problems += [f"the class {name!r} has a blank sentence" for name in source.blank]
    if problems:
        raise FileFormatError(
            f"{path}: {problems[0]}; to have blank and damaged sentences left out, type: "
            f"promptboost pool build {quote(str(path))} --classes DATA -o clean.json"
        )
    return {name: list(sentences) for name, sentences in source.sentences.items()}


def emoji_descriptions() -> dict[str, list[str]]:
    """Return the sentences promptboost comes with, for the 20 classes of the emoji dataset.

    Examples
    --------
    >>> sentences = emoji_descriptions()
    >>> len(sentences), min(map(len, sentences.values())) >= 40
    (20, True)
    """
    file = resources.files("promptboost.pool") / "data" / "emoji.json"
    with resources.as_file(file) as path:
        return read_descriptions(path)


def sentences_by_class(
    class_names: Sequence[str], descriptions: Mapping[str, Sequence[str]]
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Find the sentences of each class, names meeting as in :func:`resolve`."""
    met = resolve(class_names, descriptions)
    met.check_clear("the descriptions")
    by_class: dict[str, list[str]] = {}
    for match in met.matches:
        label = f"the class {match.entry!r}"
        if sentences := _check_sentences(descriptions[match.entry], label):
            by_class.setdefault(match.class_name, []).extend(sentences)
    return by_class, met.unused


def _check_sentences(sentences: object, owner: str) -> list[str]:
    if isinstance(sentences, str) or not isinstance(sentences, Iterable):
        raise PoolError(
            f'{owner} needs a list of sentences, not {a_type(sentences)}: write ["sentence", …]'
        )
    return [
        clean(sentence, where=f"sentence {number} of {owner}")
        for number, sentence in enumerate(sentences, start=1)
    ]

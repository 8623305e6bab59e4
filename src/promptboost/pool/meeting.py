"""Sources and classes together: which class gets which sentences from where."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from promptboost.errors import PoolError
from promptboost.pool.aliases import Resolution, resolve
from promptboost.pool.readers import Source
from promptboost.pool.text import text_key

__all__ = ["Meeting", "join", "meet", "sentences_of"]


@dataclass(frozen=True)
class Meeting:
    """A source, how its names met the classes, and what each class gets.

    Attributes
    ----------
    source : Source
        The source.
    resolution : Resolution
        How the names met.
    texts : dict of str to list of str
        The sentences of each class that gets some, repeats and all.
    """

    source: Source
    resolution: Resolution
    texts: dict[str, list[str]]


def meet(
    source: Source, class_names: Sequence[str], synonyms: Mapping[str, Sequence[str]] | None = None
) -> Meeting:
    """Give every class its sentences.

    Examples
    --------
    >>> from pathlib import Path
    >>> source = Source("mine", "plain", Path("mine.json"), {"Owl": ("large round eyes",)})
    >>> meet(source, ["owl", "bat"]).texts
    {'owl': ['large round eyes']}
    """
    if source.templates:
        # Templates have no names to meet: every class gets them all.
        resolution = Resolution((), (), (), ())
    else:
        resolution = resolve(class_names, source.sentences, synonyms)
    entries: dict[str, list[str]] = {name: [] for name in class_names}
    for match in resolution.matches:
        entries[match.class_name].append(match.entry)
    texts = {name: source.texts(own, name) for name, own in entries.items()}
    return Meeting(source, resolution, {name: found for name, found in texts.items() if found})


def join(meetings: Iterable[Meeting], class_names: Sequence[str]) -> dict[str, list[str]]:
    """Put the sentences of all sources together, in their order, each sentence once.

    Raises
    ------
    PoolError
        If names fit in more than one way, or no class has a sentence.

    Examples
    --------
    >>> from pathlib import Path
    >>> source = Source("mine", "plain", Path("mine.json"), {"Owl": ("large  eyes", "Large eyes")})
    >>> join([meet(source, ["owl"])], ["owl"])
    {'owl': ['large  eyes']}
    """
    found: dict[str, dict[str, str]] = {name: {} for name in class_names}
    for meeting in meetings:
        for item in meeting.resolution.ambiguous:
            raise PoolError(
                f"{meeting.source.path}: {_listed(item.entries)} could be {_listed(item.classes)} "
                f"({item.how}), and neither is taken on a guess; say which in a file "
                '{"class": ["other name", …]} and give it as --synonyms, or rename one'
            )
        for name, texts in meeting.texts.items():
            for text in texts:
                found[name].setdefault(text_key(text), text)
    joined = {name: list(texts.values()) for name, texts in found.items() if texts}
    if not joined:
        raise PoolError(
            "no class has a sentence: the names in the sources are not those of the classes; "
            "promptboost pool check shows both"
        )
    return joined


def sentences_of(sources: Sequence[Source], class_name: str) -> dict[str, list[str]]:
    """Return the sentences of one class by the name of the source.

    Raises
    ------
    PoolError
        If no source knows the class; the message has the nearest names.

    Examples
    --------
    >>> from pathlib import Path
    >>> source = Source("mine", "plain", Path("mine.json"), {"Owl": ("large round eyes",)})
    >>> sentences_of([source], "owl")
    {'mine': ['large round eyes']}
    """
    met = [(source.name, meet(source, [class_name])) for source in sources]
    if not any(item.texts or item.resolution.matches for _, item in met):
        entries = [entry for source in sources for entry in source.sentences]
        near = get_close_matches(class_name, entries, n=3) or entries[:3]
        raise PoolError(
            f"there is no class {class_name!r}; there is {', '.join(map(repr, dict.fromkeys(near)))}"
        )
    return {name: item.texts.get(class_name, []) for name, item in met}


def _listed(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))

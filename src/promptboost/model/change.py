"""Change: one edit of a text as data, the same from the shell, from a browser and in a file."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from promptboost.errors import SettingError
from promptboost.model import edits
from promptboost.pool.text import clean

if TYPE_CHECKING:
    from promptboost.model.ensemble import PromptEnsemble

Kind = Literal["remove", "add", "replace", "weight", "rename-class", "add-class", "drop-class"]


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One edit of a text.

    Attributes
    ----------
    kind : str
        ``remove``, ``add``, ``replace`` or ``weight`` a sentence; ``rename-class``, ``add-class`` or
        ``drop-class``.
    class_name : str, optional
        The class; to remove or replace a sentence wherever it is, none.
    sentence : str, optional
        The sentence.
    sentences : tuple of str
        Those of a class to add.
    to : str, optional
        What a sentence is replaced by, or the new name of a class.
    share : float, optional
        The part that a sentence shall have in the score of its class, between 0 and 1.

    Examples
    --------
    >>> from promptboost.model import PromptEnsemble, Round
    >>> banks = {"cat": {"a cat": 1, "a pet": 1}, "dog": {"a dog": 1}}
    >>> ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.0, 0.0),))
    >>> changed = Change(kind="weight", class_name="cat", sentence="a pet", share=0.25).apply(ensemble)
    >>> changed.prompts("cat")
    {'a cat': 0.75, 'a pet': 0.25}
    """

    kind: Kind
    class_name: str | None = msgspec.field(default=None, name="class")
    sentence: str | None = None
    sentences: tuple[str, ...] = ()
    to: str | None = None
    share: float | None = None

    def apply(self, ensemble: "PromptEnsemble") -> "PromptEnsemble":
        """Return the edited text; raise, and change nothing, if the edit cannot be made."""
        if self.kind == "remove":
            return edits.remove(ensemble, self._needed("sentence"), self.class_name)
        if self.kind == "replace":
            by = clean(self._needed("to"), where="the sentence")
            return edits.replace(ensemble, self._needed("sentence"), by, self.class_name)
        name = self._needed("class_name")
        if self.kind == "add":
            sentence = clean(self._needed("sentence"), where="the sentence")
            added = edits.add(ensemble, name, sentence)
            return added if self.share is None else edits.weigh(added, name, sentence, self.share)
        if self.kind == "weight":
            if self.share is None:
                raise SettingError("to weight a sentence, its share is needed: between 0 and 1")
            return edits.weigh(ensemble, name, self._needed("sentence"), self.share)
        if self.kind == "rename-class":
            return edits.rename_class(ensemble, name, self._needed("to"))
        if self.kind == "add-class":
            sentences = [clean(text, where="a sentence of the class") for text in self.sentences]
            return edits.add_class(ensemble, name, sentences)
        return edits.drop_class(ensemble, name)

    def _needed(self, field: str) -> str:
        value = getattr(self, field)
        if not isinstance(value, str) or not value.strip():
            of_class = self.kind.endswith("-class")
            words = {"class_name": "name" if of_class else "class", "to": "new text"}
            word = "new name" if of_class and field == "to" else words.get(field, field)
            raise SettingError(f"to {self.kind.replace('-', ' a ')}, its {word} is needed")
        return str(value)


def apply_changes(ensemble: "PromptEnsemble", changes: Iterable[Change]) -> "PromptEnsemble":
    """Apply edits one after the other."""
    for change in changes:
        ensemble = change.apply(ensemble)
    return ensemble


def original_names(class_names: Sequence[str], changes: Iterable[Change]) -> dict[str, str]:
    """Return the names that classes had before edits, by the names they have after; new ones lack."""
    names = {name: name for name in class_names}
    for change in changes:
        if change.kind == "rename-class" and change.class_name in names and change.to is not None:
            names[change.to] = names.pop(change.class_name)
        elif change.kind in ("drop-class", "add-class") and change.class_name is not None:
            names.pop(change.class_name, None)
    return names


def parse_change(kind: Kind, text: str, class_names: Sequence[str]) -> Change:
    """Read an edit as it is typed: ``CLASS=SENTENCE``, ``CLASS=SENTENCE=SHARE``, ``OLD=NEW``.

    Examples
    --------
    >>> change = parse_change("weight", "cat=a pet=0.25", ["cat", "dog"])
    >>> change.class_name, change.sentence, change.share
    ('cat', 'a pet', 0.25)
    >>> parse_change("remove", "a pet", ["cat", "dog"]).class_name is None
    True
    """
    if kind == "drop-class":
        return Change(kind=kind, class_name=text)
    if kind == "add-class":
        new, equals, sentence = text.partition("=")
        if not equals:
            raise SettingError(f"--add-class {text!r}: type the name, =, and a sentence about it")
        return Change(kind=kind, class_name=new.strip(), sentences=(sentence.strip(),))
    name, rest = _class_before(text, class_names)
    if kind == "remove":
        return Change(kind=kind, class_name=name, sentence=text if name is None else rest)
    if name is None:
        raise SettingError(
            f"--{kind} {text!r} does not begin with a class and =; there are "
            f"{', '.join(map(repr, class_names[:10]))}{', …' if len(class_names) > 10 else ''}"
        )
    if kind == "rename-class":
        return Change(kind=kind, class_name=name, to=rest)
    share = None
    if kind == "weight" or re.search(r"= *[0-9.]+$", rest):
        rest, _, number = rest.rpartition("=")
        share = _share(number, f"--{kind} {text!r}")
    return Change(kind=kind, class_name=name, sentence=rest.rstrip(), share=share)


def _class_before(text: str, class_names: Sequence[str]) -> tuple[str | None, str]:
    """Split ``CLASS=…`` at the longest class name that it begins with."""
    for name in sorted(class_names, key=len, reverse=True):
        rest = text[len(name) :].lstrip()
        if text.startswith(name) and rest.startswith("="):
            return name, rest[1:].strip()
    return None, text


def _share(number: str, where: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise SettingError(f"{where} does not end with = and a share, such as =0.25") from None

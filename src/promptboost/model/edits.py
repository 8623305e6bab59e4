"""Edits of an ensemble: functions that return a new one, their table, and edits as data.

:data:`OPERATIONS` lists the edits that have a name in files, on the command line and in the
workbench. The same functions are methods of :class:`~promptboost.model.PromptEnsemble`.
"""

import dataclasses
import difflib
import math
import numbers
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import msgspec

from promptboost.errors import LabelError, PoolError, SettingError, count, few
from promptboost.model import schema
from promptboost.pool.text import check_class_names, clean, look_alike_word, name_key

if TYPE_CHECKING:
    from promptboost.model.ensemble import PromptEnsemble

Bank = Mapping[str, int]
Banks = Mapping[str, Bank]
T = TypeVar("T")


def truncate(ensemble: "PromptEnsemble", rounds: int) -> "PromptEnsemble":
    """Keep the first rounds: the ensemble that a shorter fit would have given.

    The sample weights stay those of the end of the fit.
    """
    if not isinstance(rounds, numbers.Integral) or not 1 <= rounds <= len(ensemble):
        raise SettingError(f"rounds is {rounds!r}: give a number from 1 to {len(ensemble)}.")
    if rounds == len(ensemble):
        return ensemble
    line = f"truncated from {len(ensemble)} to {rounds} rounds"
    history = (*ensemble.history, line)
    return dataclasses.replace(ensemble, rounds=ensemble.rounds[:rounds], history=history)


def remove(
    ensemble: "PromptEnsemble", sentence: str, class_name: str | None = None
) -> "PromptEnsemble":
    """Remove all copies of a sentence, from one class or from all.

    Raise a PoolError if no class has it, or a bank would be empty without it.
    """
    classes = _classes_with(ensemble, sentence, class_name)
    only = [
        f'rounds[{i}].banks["{name}"]'
        for name in classes
        for i, round_ in enumerate(ensemble.rounds)
        if set(round_.banks[name]) == {sentence}
    ]
    if only:
        raise PoolError(
            f"Cannot remove {sentence!r}: nothing else is in {few(only, most=3)}. Put another prompt "
            "in its place with replace, or leave the class out with drop_class."
        )
    lines = [f"removed {sentence!r} from {_copies(ensemble, sentence, name)}" for name in classes]

    def without(bank: Bank) -> Bank:
        return {prompt: copies for prompt, copies in bank.items() if prompt != sentence}

    return _edited(ensemble, lines, _of_classes(classes, without))


def replace(
    ensemble: "PromptEnsemble", sentence: str, to: str, class_name: str | None = None
) -> "PromptEnsemble":
    """Replace a sentence by another, which takes over its copies and is pinned."""
    classes = _classes_with(ensemble, sentence, class_name)
    lines = [
        f"replaced {sentence!r} by {to!r} in {_copies(ensemble, sentence, name)}"
        for name in classes
    ]

    def replaced(bank: Bank) -> Bank:
        changed: Counter[str] = Counter()  # copies of prompts that become equal add up
        for prompt, copies in bank.items():
            changed[to if prompt == sentence else prompt] += copies
        return changed

    edited = _edited(ensemble, lines, _of_classes(classes, replaced))
    pins = {name: (*edited.pinned.get(name, ()), to) for name in classes}
    return dataclasses.replace(edited, pinned={**edited.pinned, **pins})


def add(
    ensemble: "PromptEnsemble",
    class_name: str,
    sentence: str,
    copies: int = 1,
    *,
    share: float | None = None,
) -> "PromptEnsemble":
    """Add copies of a sentence to the bank of a class in every round, and pin it.

    Parameters
    ----------
    class_name, sentence : str
        The class, and the sentence to add; copies of a present sentence add up.
    copies : int, default=1
        Copies to add. One copy among three others is a quarter of the class's score in that round.
    share : float, optional
        Its share in the score of the class afterwards, as by :func:`weight`.
    """
    schema.check_class(ensemble.class_names, class_name)
    new = schema.as_bank({sentence: copies}, "sentences")[sentence]
    line = (
        f"added {sentence!r} to {class_name} ({count(copies, 'copy', 'copies')} in "
        f"{count(len(ensemble), 'round')})"
    )

    def extended(bank: Bank) -> Bank:
        return {**bank, sentence: bank.get(sentence, 0) + new}

    added = _edited(ensemble, [line], _of_classes([class_name], extended))
    return added if share is None else weight(added, class_name, sentence, share)


def weight(
    ensemble: "PromptEnsemble", class_name: str, sentence: str, share: float
) -> "PromptEnsemble":
    """Set the share of a sentence in the score of its class, in every round that has it and others.

    The others keep their proportions. Copies are whole numbers, so all are multiplied until the
    share is met within a thousandth. Rounds in which the sentence is the only one do not change.
    """
    _classes_with(ensemble, sentence, class_name)
    if not isinstance(share, numbers.Real) or not 0 < share < 1:
        raise SettingError(
            f"the share of {sentence!r} must be between 0 and 1, both excluded, got {share!r}; "
            "use remove to remove a sentence"
        )
    banks = [round_.banks[class_name] for round_ in ensemble.rounds]
    having = [bank for bank in banks if sentence in bank]
    shared = sum(len(bank) > 1 for bank in having)

    def weighted(bank: Bank) -> Bank:
        if sentence not in bank or len(bank) == 1:
            return bank
        others = {prompt: n for prompt, n in bank.items() if prompt != sentence}
        size = sum(others.values())
        # Enough copies that the rounding of one is less than a thousandth of the whole.
        factor = max(1, math.ceil(1000 * (1 - share) / size))
        copies = max(1, round(float(share) * size * factor / (1 - float(share))))
        return {prompt: n * factor for prompt, n in others.items()} | {sentence: copies}

    line = f"gave {sentence!r} a share of {100 * float(share):.3g}% in {class_name}"
    if shared < len(having):
        line += f" ({shared} of {count(len(having), 'round')}: else it is the only one)"
    return _edited(ensemble, [line], _of_classes([class_name], weighted))


def add_class(
    ensemble: "PromptEnsemble", class_name: str, sentences: str | Iterable[str] | Mapping[str, int]
) -> "PromptEnsemble":
    """Add a class that scores by these sentences, the same in every round.

    No image was used to learn it: measure before you rely on it.
    """
    if class_name in ensemble.class_names:
        raise LabelError(f"There is a class {class_name!r} already: give it sentences with add.")
    _check_new_name(class_name, ensemble.class_names)
    if isinstance(sentences, str):
        sentences = [sentences]
    bank = schema.as_bank(Counter(sentences), "sentences")
    line = f"added the class {class_name} with {count(len(bank), 'sentence')}"
    names = (*ensemble.class_names, class_name)
    return _edited(ensemble, [line], lambda banks: {**banks, class_name: bank}, names)


def rename_class(ensemble: "PromptEnsemble", class_name: str, to: str) -> "PromptEnsemble":
    """Rename a class; its prompts stay."""
    schema.check_class(ensemble.class_names, class_name)
    if to == class_name:
        return ensemble
    if to in ensemble.class_names:
        raise LabelError(f"There is a class {to!r} already: choose another name.")
    _check_new_name(to, [name for name in ensemble.class_names if name != class_name])

    def renamed(banks: Banks) -> Banks:
        return {to if name == class_name else name: bank for name, bank in banks.items()}

    line = f"renamed {class_name} to {to}"
    names = tuple(to if name == class_name else name for name in ensemble.class_names)
    return _edited(ensemble, [line], renamed, names)


def drop_class(ensemble: "PromptEnsemble", class_name: str) -> "PromptEnsemble":
    """Drop a class; the other classes and the sample weights stay as they are."""
    schema.check_class(ensemble.class_names, class_name)
    if len(ensemble.class_names) == 2:
        raise LabelError(f"Cannot drop {class_name!r}: a classifier needs two classes.")
    names = tuple(name for name in ensemble.class_names if name != class_name)
    line = f"dropped {class_name}"
    return _edited(ensemble, [line], lambda banks: {name: banks[name] for name in names}, names)


class Operation(NamedTuple):
    """A kind of edit."""

    function: Callable[..., "PromptEnsemble"]  # of an ensemble, and fields of a Change by name
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    notation: str = ""  # on the command line; empty where it has no such option
    help: str = ""
    new_text: str = ""  # the field with a new sentence, which is cleaned


Kind = Literal["rename-class", "drop-class", "add-class", "remove", "replace", "add", "weight"]

#: The edits, in the order in which the command line applies them.
OPERATIONS: dict[Kind, Operation] = {
    "rename-class": Operation(
        rename_class,
        ("class_name", "to"),
        notation="OLD=NEW",
        help="Rename a class; its sentences stay.",
    ),
    "drop-class": Operation(drop_class, ("class_name",), notation="CLASS", help="Drop a class."),
    "add-class": Operation(
        add_class,
        ("class_name", "sentences"),
        notation="CLASS=SENTENCE",
        help="Add a class; repeat for each of its sentences.",
        new_text="sentences",
    ),
    "remove": Operation(
        remove,
        ("sentence",),
        ("class_name",),
        notation="[CLASS=]SENTENCE",
        help="Remove a sentence, from one class or from all.",
    ),
    "replace": Operation(replace, ("sentence", "to"), ("class_name",), new_text="to"),
    "add": Operation(
        add,
        ("class_name", "sentence"),
        ("share",),
        notation="CLASS=SENTENCE[=SHARE]",
        help="Add a sentence, optionally with its share in the class.",
        new_text="sentence",
    ),
    "weight": Operation(
        weight,
        ("class_name", "sentence", "share"),
        notation="CLASS=SENTENCE=SHARE",
        help="Set the share of a sentence in its class, between 0 and 1.",
    ),
}


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One edit as data: from the shell, from a browser and in a file."""

    kind: Kind
    class_name: str | None = msgspec.field(default=None, name="class")  # None for all classes
    sentence: str | None = None
    sentences: tuple[str, ...] = ()  # of a class to add
    to: str | None = None  # the new sentence or class name
    share: float | None = None  # of the sentence in the score of its class, between 0 and 1

    def apply(self, ensemble: "PromptEnsemble") -> "PromptEnsemble":
        """Return the edited ensemble; raise an InputError if the edit is not possible."""
        operation = OPERATIONS[self.kind]
        arguments = {name: getattr(self, name) for name in operation.required + operation.optional}
        for name in operation.required:
            value = arguments[name]
            if value is None or (isinstance(value, str) and not value.strip()):
                label = {"class_name": "class name", "to": "new text"}.get(name, name)
                raise SettingError(f"to {self.kind.replace('-', ' a ')}, its {label} is needed")
        if operation.new_text == "sentences":
            arguments["sentences"] = [clean(s, where="a sentence") for s in self.sentences]
        elif operation.new_text:
            text = arguments[operation.new_text]
            arguments[operation.new_text] = clean(text, where="the sentence")
        return operation.function(ensemble, **arguments)

    @property
    def remark(self) -> str | None:
        """A warning of new text with letters that only look Latin."""
        given = {"add": self.sentence, "add-class": self.class_name}.get(self.kind)
        texts = filter(None, (given, self.to, *self.sentences))
        word = next(filter(None, map(look_alike_word, texts)), None)
        return word and f"the letters of {word!r} are not all Latin: {word!a}"


def apply_changes(ensemble: "PromptEnsemble", changes: Iterable[Change]) -> "PromptEnsemble":
    """Apply edits one after the other."""
    for change in changes:
        ensemble = change.apply(ensemble)
    return ensemble


def original_names(class_names: Sequence[str], changes: Iterable[Change]) -> dict[str, str]:
    """Map the names of classes after edits to those before; classes that were added have none."""
    names = {name: name for name in class_names}
    for change in changes:
        if change.kind == "rename-class" and change.class_name in names and change.to is not None:
            names[change.to] = names.pop(change.class_name)
        elif change.kind in ("drop-class", "add-class") and change.class_name is not None:
            names.pop(change.class_name, None)
    return names


def parse_changes(
    options: Mapping[Kind, Sequence[str]], class_names: Sequence[str]
) -> list[Change]:
    """Parse edits typed as options, in the order of :data:`OPERATIONS`.

    Classes that earlier edits rename or add can be named by later ones; the sentences of a class to add
    are collected.
    """
    names = list(class_names)
    changes: list[Change] = []
    for kind in OPERATIONS:
        for text in options.get(kind, ()):
            change = parse_change(kind, text, names)
            if kind == "rename-class" and change.class_name in names:
                names[names.index(change.class_name)] = change.to or ""
            if kind == "add-class":
                last = changes[-1] if changes else None
                if last and (last.kind, last.class_name) == (kind, change.class_name):
                    sentences = (*last.sentences, *change.sentences)
                    changes[-1] = msgspec.structs.replace(last, sentences=sentences)
                    continue
                names.append(change.class_name or "")
            changes.append(change)
    return changes


def parse_change(kind: Kind, text: str, class_names: Sequence[str]) -> Change:
    """Parse an edit in the notation of its operation, such as ``CLASS=SENTENCE=SHARE``."""
    if kind == "drop-class":
        return Change(kind=kind, class_name=text)
    if kind == "add-class":
        name, equals, sentence = text.partition("=")
        if not equals:
            raise SettingError(f"--add-class {text!r}: type the name, =, and a sentence about it")
        return Change(kind=kind, class_name=name.strip(), sentences=(sentence.strip(),))
    class_name, value = _split_class(text, class_names)
    if kind == "remove":
        return Change(kind=kind, class_name=class_name, sentence=value)
    if class_name is None:
        raise SettingError(
            f"--{kind} {text!r} does not begin with a class and =; there are "
            f"{_listed(class_names[:10])}{', …' if len(class_names) > 10 else ''}"
        )
    if kind == "rename-class":
        return Change(kind=kind, class_name=class_name, to=value)
    share = None
    if kind == "weight" or re.search(r"= *[0-9.]+$", value):
        value, _, number = value.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            raise SettingError(
                f"--{kind} {text!r} does not end with = and a share, such as =0.25"
            ) from None
    return Change(kind=kind, class_name=class_name, sentence=value.rstrip(), share=share)


def _split_class(text: str, class_names: Sequence[str]) -> tuple[str | None, str]:
    """Split ``CLASS=…`` after the longest class name at its beginning."""
    for name in sorted(class_names, key=len, reverse=True):
        after = text[len(name) :].lstrip()
        if text.startswith(name) and after.startswith("="):
            return name, after[1:].strip()
    return None, text


class ClassDifference(msgspec.Struct, frozen=True):
    """Sentences of a class with their weights, by what happened to them."""

    added: dict[str, float]  # heaviest first
    removed: dict[str, float]
    changed: dict[str, dict[str, float]]  # "before" and "after", largest change first


class Difference(msgspec.Struct, frozen=True):
    """The difference of two ensembles."""

    classes: dict[str, ClassDifference]  # those of both in which something changed
    added_classes: list[str]
    removed_classes: list[str]
    same: int  # sentences in both, counted per class

    def __bool__(self) -> bool:
        return bool(self.classes or self.added_classes or self.removed_classes)


def difference(
    before: "PromptEnsemble", after: "PromptEnsemble", class_name: str | None = None
) -> Difference:
    """Compare two ensembles, or one class of them; classes are matched by their names."""
    if class_name is None:
        names = [name for name in before.class_names if name in after.class_names]
        added = [name for name in after.class_names if name not in before.class_names]
        removed = [name for name in before.class_names if name not in after.class_names]
    else:
        names, added, removed = [class_name], [], []
    classes, same = {}, 0
    for name in names:
        old, new = before.prompts(name), after.prompts(name)
        same += len(old.keys() & new.keys())
        # Weights are sums of quotients, so they are compared up to rounding.
        steps = [(s, old[s], new[s]) for s in new if s in old and abs(new[s] - old[s]) > 1e-9]
        steps.sort(key=lambda step: (-abs(step[2] - step[1]), step[0]))
        changes = ClassDifference(
            {sentence: weight for sentence, weight in new.items() if sentence not in old},
            {sentence: weight for sentence, weight in old.items() if sentence not in new},
            {sentence: {"before": a, "after": b} for sentence, a, b in steps},
        )
        if changes.added or changes.removed or changes.changed:
            classes[name] = changes
    return Difference(classes, added, removed, same)


def _check_new_name(name: str, others: Iterable[str]) -> None:
    """Raise for a name that a fit would reject."""
    try:
        # Other names are not checked: they may be invalid already.
        check_class_names([*(o for o in others if name_key(o) == name_key(name)), name])
    except PoolError as error:
        raise LabelError(str(error)) from error


def _classes_with(ensemble: "PromptEnsemble", prompt: str, class_name: str | None) -> list[str]:
    """List the classes that have a prompt; raise if there is none, with a similar prompt."""
    if class_name is not None:
        schema.check_class(ensemble.class_names, class_name)
    searched = ensemble.class_names if class_name is None else (class_name,)
    having = [name for name in searched if any(prompt in r.banks[name] for r in ensemble.rounds)]
    if not having:
        prompts = [text for name in searched for text in ensemble.prompts(name)]
        close = difflib.get_close_matches(prompt, prompts, n=1, cutoff=0)
        where = "The ensemble" if class_name is None else f"The class {class_name!r}"
        raise PoolError(f"{where} has no prompt {prompt!r}. Near it: {_listed(close)}.")
    return having


def _copies(ensemble: "PromptEnsemble", prompt: str, name: str) -> str:
    copies = [r.banks[name][prompt] for r in ensemble.rounds if prompt in r.banks[name]]
    return f"{name} ({count(sum(copies), 'copy', 'copies')} in {count(len(copies), 'round')})"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _of_classes(classes: Iterable[str], change: Callable[[Bank], Bank]) -> Callable[[Banks], Banks]:
    """Change the banks of some classes."""
    chosen = set(classes)
    return lambda banks: {n: change(bank) if n in chosen else bank for n, bank in banks.items()}


def _edited(
    ensemble: "PromptEnsemble",
    lines: list[str],
    change: Callable[[Banks], Banks],
    class_names: tuple[str, ...] | None = None,
) -> "PromptEnsemble":
    """Change the banks of every round, and perhaps the class names; add lines to the history."""
    # A change that adds, removes or renames a sentence does the same to the pins.
    pins = change({n: dict.fromkeys(ensemble.pinned.get(n, ()), 1) for n in ensemble.class_names})
    return dataclasses.replace(
        ensemble,
        class_names=class_names or ensemble.class_names,
        rounds=tuple(dataclasses.replace(r, banks=change(r.banks)) for r in ensemble.rounds),
        pinned={name: tuple(bank) for name, bank in pins.items()},
        history=(*ensemble.history, *lines),
    )

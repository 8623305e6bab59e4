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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from promptboost.errors import LabelError, PoolError, SettingError, few
from promptboost.model import schema
from promptboost.pool.text import check_class_names, clean, name_key

if TYPE_CHECKING:
    from promptboost.model.ensemble import EncoderRecord, PromptEnsemble

Bank = Mapping[str, int]
Banks = Mapping[str, Bank]
T = TypeVar("T")


def merge(first: "PromptEnsemble", *others: "PromptEnsemble") -> "PromptEnsemble":
    """Concatenate the rounds of several ensembles.

    The classes must be the same; their order is that of the first. Encoders, pool, settings,
    versions and sample weights are kept where all ensembles agree on them, and dropped otherwise. The
    logit scale is the lowest of theirs.
    """
    if not others:
        return first
    for other in others:
        _check_mergeable(first, other)
    ensembles = (first, *others)
    sizes = [str(len(ensemble)) for ensemble in ensembles]
    scales: list[Any] = [ensemble.logit_scale for ensemble in ensembles]
    line = f"merged ensembles of {', '.join(sizes[:-1])} and {sizes[-1]} rounds"

    def agreed(name: str) -> Any:
        return _agreed(getattr(ensemble, name) for ensemble in ensembles)

    return dataclasses.replace(
        first,
        rounds=tuple(round_ for ensemble in ensembles for round_ in ensemble.rounds),
        encoder_id=agreed("encoder_id"),
        encoder_fingerprint=agreed("encoder_fingerprint"),
        pool_fingerprint=agreed("pool_fingerprint"),
        settings=_common([ensemble.settings for ensemble in ensembles]),
        versions=_common([ensemble.versions for ensemble in ensembles]),
        sample_weights=agreed("sample_weights") or {},
        logit_scale=None if None in scales else min(scales),
        encoder_logit_scale=agreed("encoder_logit_scale"),
        further_encoders=_common_encoders(ensembles),
        history=(*(entry for ensemble in ensembles for entry in ensemble.history), line),
    )


def _common_encoders(ensembles: tuple["PromptEnsemble", ...]) -> "tuple[EncoderRecord, ...]":
    """Return the further encoders if all ensembles have the same, each with its lowest logit scale."""
    ids = ([(e.id, e.fingerprint) for e in ensemble.encoders] for ensemble in ensembles)
    if _agreed(ids) is None:
        return ()
    lowest = []
    for same in zip(*(ensemble.further_encoders for ensemble in ensembles), strict=True):
        scales: list[Any] = [encoder.logit_scale for encoder in same]
        scale = None if None in scales else min(scales)
        lowest.append(dataclasses.replace(same[0], logit_scale=scale))
    return tuple(lowest)


def _check_mergeable(first: "PromptEnsemble", other: "PromptEnsemble") -> None:
    odd = set(first.class_names) ^ set(other.class_names)
    if odd:
        raise LabelError(
            f"Only one of two ensembles to merge has the classes {_listed(sorted(odd))}: "
            "use rename_class or drop_class first."
        )
    if first.temperature != other.temperature:
        raise SettingError(
            f"Ensembles to merge must have one temperature; got {first.temperature!r} and "
            f"{other.temperature!r}."
        )


def _agreed(values: Iterable[T]) -> T | None:
    first, *others = values
    return first if all(other == first for other in others) else None


def _common(mappings: list[Mapping[str, T]]) -> dict[str, T]:
    """Return the pairs that all mappings have; 1, 1.0 and True are different values."""
    pairs = [{(key, type(value), value) for key, value in each.items()} for each in mappings]
    return {key: value for key, _, value in set.intersection(*pairs)}


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

    Raises
    ------
    PoolError
        If no class has it, or a bank would be empty without it.
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
    """Replace a sentence by another, which takes over its copies."""
    classes = _classes_with(ensemble, sentence, class_name)
    lines = [
        f"replaced {sentence!r} by {to!r} in {_copies(ensemble, sentence, name)}"
        for name in classes
    ]

    def replaced(bank: Bank) -> Bank:
        return _mapped(bank, lambda prompt: to if prompt == sentence else prompt)

    return _edited(ensemble, lines, _of_classes(classes, replaced))


def add(
    ensemble: "PromptEnsemble",
    class_name: str,
    sentence: str,
    copies: int = 1,
    *,
    share: float | None = None,
) -> "PromptEnsemble":
    """Add copies of a sentence to the bank of a class in every round.

    Parameters
    ----------
    class_name, sentence : str
        A class, and the sentence to add; it may be there already.
    copies : int, default=1
        Copies to add. One copy among three others is a quarter of the class's score in that round.
    share : float, optional
        Its share in the score of the class afterwards, as by :func:`weight`.
    """
    schema.check_class(ensemble.class_names, class_name)
    new = schema.as_bank({sentence: copies}, "sentences")[sentence]
    line = (
        f"added {sentence!r} to {class_name} ({_plural(copies, 'copy', 'copies')} in "
        f"{_plural(len(ensemble), 'round')})"
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
    share is met within a thousandth. A sentence that is alone in a round stays alone, and the history
    tells in how many rounds it is not.
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

    line = f"gave {sentence!r} a share of {float(share):.3g} in {class_name}"
    if shared < len(having):
        line += f" ({shared} of {_plural(len(having), 'round')}: else it is the only one)"
    return _edited(ensemble, [line], _of_classes([class_name], weighted))


def add_class(
    ensemble: "PromptEnsemble",
    class_name: str,
    sentences: str | Iterable[str] | Mapping[str, int],
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
    line = f"added the class {class_name} with {_plural(len(bank), 'sentence')}"
    names = (*ensemble.class_names, class_name)
    return _edited(ensemble, [line], lambda banks: {**banks, class_name: bank}, names)


def rename_class(
    ensemble: "PromptEnsemble", class_name: str, to: str, *, in_prompts: bool = False
) -> "PromptEnsemble":
    """Rename a class and, with `in_prompts`, write the new name into its prompts.

    The name alone is a label: predictions only change their spelling. Prompts change where they hold
    the old name as a whole word or words, and then so do their embeddings.
    """
    schema.check_class(ensemble.class_names, class_name)
    if to == class_name:
        return ensemble
    if to in ensemble.class_names:
        raise LabelError(f"There is a class {to!r} already: choose another name.")
    _check_new_name(to, [name for name in ensemble.class_names if name != class_name])
    word = re.compile(rf"(?<!\w){re.escape(class_name)}(?!\w)")

    def renamed(banks: Banks) -> Banks:
        bank = banks[class_name]
        if in_prompts:
            bank = _mapped(bank, lambda prompt: word.sub(lambda _: to, prompt))
        return {name: banks[name] for name in banks if name != class_name} | {to: bank}

    line = f"renamed {class_name} to {to}{', also in its prompts' if in_prompts else ''}"
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
    """A kind of edit.

    Attributes
    ----------
    function : callable
        Takes an ensemble, and fields of a :class:`Change` by their names.
    required, optional : tuple of str
        The fields.
    notation, help : str
        How the command line writes and explains it; empty where it has no such option.
    new_text : str
        The field with a new sentence, which is cleaned as the sentences of a pool are.
    """

    function: Callable[..., "PromptEnsemble"]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    notation: str = ""
    help: str = ""
    new_text: str = ""


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
    """One edit as data: from the shell, from a browser and in a file.

    Attributes
    ----------
    kind : str
        A key of :data:`OPERATIONS`.
    class_name : str, optional
        The class; without it, a sentence is removed or replaced in all classes.
    sentence : str, optional
        The sentence.
    sentences : tuple of str
        The sentences of a class to add.
    to : str, optional
        The sentence or class name that replaces the old one.
    share : float, optional
        The share of the sentence in the score of its class, between 0 and 1.

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
    """Parse an edit in the notation of its operation, such as ``CLASS=SENTENCE=SHARE``.

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
    """Raise for a name that a fit would refuse next to the others."""
    try:
        # The others may themselves be names that no fit takes.
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
    return f"{name} ({_plural(sum(copies), 'copy', 'copies')} in {_plural(len(copies), 'round')})"


def _plural(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _mapped(bank: Bank, change: Callable[[str], str]) -> Bank:
    """Change the prompts of a bank; the copies of prompts that become equal add up."""
    changed: Counter[str] = Counter()
    for prompt, copies in bank.items():
        changed[change(prompt)] += copies
    return changed


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
    return dataclasses.replace(
        ensemble,
        class_names=class_names or ensemble.class_names,
        rounds=tuple(dataclasses.replace(r, banks=change(r.banks)) for r in ensemble.rounds),
        history=(*ensemble.history, *lines),
    )

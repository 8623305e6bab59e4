"""Operations on the text of an ensemble. Each returns a new one, with a line more of history.

They are methods of :class:`~promptboost.model.PromptEnsemble`; here is what they do.
"""

import dataclasses
import difflib
import math
import numbers
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from promptboost.errors import LabelError, PoolError, SettingError, count, few
from promptboost.model import schema
from promptboost.pool.names import check_class_names
from promptboost.pool.text import name_key

if TYPE_CHECKING:
    from promptboost.model.ensemble import LearntOn, PromptEnsemble

Bank = Mapping[str, int]
T = TypeVar("T")


def merge(first: "PromptEnsemble", *others: "PromptEnsemble") -> "PromptEnsemble":
    """Put the rounds of several ensembles one after the other.

    The classes must be the same; their order is taken from the first. Where the ensembles agree
    on an encoder, a pool, a setting, a version or the sample weights, it is kept; where they do
    not, nothing would be true of all rounds, and it is left out. The logit scale of probabilities is
    the lowest of theirs: that of the least sure.
    """
    if not others:
        return first
    for other in others:
        _check_mergeable(first, other)
    every = (first, *others)
    sizes = [str(len(one)) for one in every]
    scales: list[Any] = [one.logit_scale for one in every]
    line = f"merged ensembles of {', '.join(sizes[:-1])} and {sizes[-1]} rounds"
    return dataclasses.replace(
        first,
        rounds=tuple(item for one in every for item in one.rounds),
        encoder_id=_agreed(one.encoder_id for one in every),
        encoder_fingerprint=_agreed(one.encoder_fingerprint for one in every),
        pool_fingerprint=_agreed(one.pool_fingerprint for one in every),
        settings=_common([one.settings for one in every]),
        versions=_common([one.versions for one in every]),
        sample_weights=_agreed(one.sample_weights for one in every) or {},
        logit_scale=None if None in scales else min(scales),
        encoder_logit_scale=_agreed(one.encoder_logit_scale for one in every),
        further_encoders=_common_encoders(every),
        history=(*(entry for one in every for entry in one.history), line),
    )


def _common_encoders(every: tuple["PromptEnsemble", ...]) -> "tuple[LearntOn, ...]":
    """Return the encoders after the first, where all were learnt on the same, as the least sure one's."""
    if _agreed([(item.id, item.fingerprint) for item in one.encoders] for one in every) is None:
        return ()
    lowest = []
    for items in zip(*(one.further_encoders for one in every), strict=True):
        scales: list[Any] = [item.logit_scale for item in items]
        scale = None if None in scales else min(scales)
        lowest.append(dataclasses.replace(items[0], logit_scale=scale))
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
    """Keep what all mappings say; 1, 1.0 and True are different settings."""
    pairs = [{(key, type(value), value) for key, value in one.items()} for one in mappings]
    return {key: value for key, _, value in set.intersection(*pairs)}


def truncate(ensemble: "PromptEnsemble", rounds: int) -> "PromptEnsemble":
    """Keep the first rounds, which are the ensemble that a shorter fit would have given.

    The sample weights stay: they tell which images were hard at the end of the fit.
    """
    if not isinstance(rounds, numbers.Integral) or not 1 <= rounds <= len(ensemble):
        raise SettingError(f"rounds is {rounds!r}: give a number from 1 to {len(ensemble)}.")
    if rounds == len(ensemble):
        return ensemble
    line = f"truncated from {len(ensemble)} to {rounds} rounds"
    return _edited(ensemble, [line], rounds=ensemble.rounds[:rounds])


def remove(
    ensemble: "PromptEnsemble", prompt: str, class_name: str | None = None
) -> "PromptEnsemble":
    """Take all copies of a prompt out, of one class or of all that have it.

    A bank that held nothing else would have no score left: this is an error that says
    where, and what can be done instead.
    """
    classes = _classes_with(ensemble, prompt, class_name)
    only = [
        f'rounds[{i}].banks["{name}"]'
        for name in classes
        for i, item in enumerate(ensemble.rounds)
        if set(item.banks[name]) == {prompt}
    ]
    if only:
        raise PoolError(
            f"Cannot remove {prompt!r}: nothing else is in {few(only, most=3)}. Put another prompt in "
            "its place with replace, or leave the class out with drop_class."
        )
    lines = [f"removed {prompt!r} from {_count(ensemble, prompt, name)}" for name in classes]

    def without(bank: Bank) -> Bank:
        return {text: copies for text, copies in bank.items() if text != prompt}

    return _rewritten(ensemble, classes, without, lines)


def replace(
    ensemble: "PromptEnsemble", prompt: str, by: str, class_name: str | None = None
) -> "PromptEnsemble":
    """Put one prompt in the place of another, with its copies."""
    classes = _classes_with(ensemble, prompt, class_name)
    lines = [
        f"replaced {prompt!r} by {by!r} in {_count(ensemble, prompt, name)}" for name in classes
    ]

    def exchanged(bank: Bank) -> Bank:
        return _mapped(bank, lambda text: by if text == prompt else text)

    return _rewritten(ensemble, classes, exchanged, lines)


def add(
    ensemble: "PromptEnsemble", class_name: str, sentence: str, copies: int = 1
) -> "PromptEnsemble":
    """Add copies of a sentence to the bank of a class in every round.

    How much it counts depends on the bank: one copy among three others is a quarter of the class's
    score in that round. A sentence that is there already gets so many copies more.
    """
    check_known(ensemble, class_name)
    bank = schema.as_bank({sentence: copies}, "sentences")
    where = f"{class_name} ({count(copies, 'copy', 'copies')} in {count(len(ensemble), 'round')})"

    def with_it(old: Bank) -> Bank:
        return {**old, sentence: old.get(sentence, 0) + bank[sentence]}

    return _rewritten(ensemble, [class_name], with_it, [f"added {sentence!r} to {where}"])


def weigh(
    ensemble: "PromptEnsemble", class_name: str, sentence: str, share: float
) -> "PromptEnsemble":
    """Set the share of a sentence in the score of its class, in every round that has it and others.

    The others keep their proportions. Copies are whole numbers, so all are multiplied until the share is
    met within a thousandth. Where it is the only sentence of a round it stays so, and the history says in
    how many rounds it is not.
    """
    _classes_with(ensemble, sentence, class_name)
    if not isinstance(share, numbers.Real) or not 0 < share < 1:
        raise SettingError(
            f"the share of {sentence!r} is {share!r}: give a number between 0 and 1, "
            "and neither of them; remove takes a sentence out."
        )
    banks = [item.banks[class_name] for item in ensemble.rounds]
    having = [bank for bank in banks if sentence in bank]
    shared = sum(len(bank) > 1 for bank in having)

    def weighed(bank: Bank) -> Bank:
        if sentence not in bank or len(bank) == 1:
            return bank
        others = {text: copies for text, copies in bank.items() if text != sentence}
        size = sum(others.values())
        # Enough copies that the rounding of one is less than a thousandth of the whole.
        factor = max(1, math.ceil(1000 * (1 - share) / size))
        copies = max(1, round(float(share) * size * factor / (1 - float(share))))
        return {text: n * factor for text, n in others.items()} | {sentence: copies}

    line = f"gave {sentence!r} a share of {float(share):.3g} in {class_name}"
    if shared < len(having):
        line += f" ({shared} of {count(len(having), 'round')}: else it is the only one)"
    return _rewritten(ensemble, [class_name], weighed, [line])


def add_class(
    ensemble: "PromptEnsemble", name: str, sentences: str | Iterable[str] | Mapping[str, int]
) -> "PromptEnsemble":
    """Add a class that scores by these sentences, the same in every round.

    No image was needed to learn the others' sentences against it: measure before you rely on it.
    """
    if name in ensemble.class_names:
        raise LabelError(f"There is a class {name!r} already: give it sentences with add.")
    _check_new_name(name, ensemble.class_names)
    if isinstance(sentences, str):
        sentences = [sentences]
    bank = schema.as_bank(Counter(sentences), "sentences")
    return _edited(
        ensemble,
        [f"added the class {name} with {count(len(bank), 'sentence')}"],
        class_names=(*ensemble.class_names, name),
        rounds=tuple(
            dataclasses.replace(item, banks={**item.banks, name: bank}) for item in ensemble.rounds
        ),
    )


def rename_class(
    ensemble: "PromptEnsemble", old: str, new: str, *, in_prompts: bool = False
) -> "PromptEnsemble":
    """Rename a class, and with `in_prompts` write it into the prompts of that class.

    The name alone is a label: predictions only change their spelling. Prompts are changed where
    they hold the old name as a whole word or words, and this changes what is embedded.
    """
    check_known(ensemble, old)
    if new == old:
        return ensemble
    if new in ensemble.class_names:
        raise LabelError(f"There is a class {new!r} already: choose another name.")
    _check_new_name(new, [name for name in ensemble.class_names if name != old])
    word = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)")

    def renamed(banks: Mapping[str, Bank]) -> dict[str, Bank]:
        bank = banks[old]
        if in_prompts:
            bank = _mapped(bank, lambda text: word.sub(lambda _: new, text))
        return {name: banks[name] for name in banks if name != old} | {new: bank}

    return _edited(
        ensemble,
        [f"renamed {old} to {new}{', also in its prompts' if in_prompts else ''}"],
        class_names=tuple(new if name == old else name for name in ensemble.class_names),
        rounds=tuple(
            dataclasses.replace(item, banks=renamed(item.banks)) for item in ensemble.rounds
        ),
    )


def drop_class(ensemble: "PromptEnsemble", name: str) -> "PromptEnsemble":
    """Leave a class out; the others keep their banks. The sample weights stay as they were."""
    check_known(ensemble, name)
    if len(ensemble.class_names) == 2:
        raise LabelError(f"Cannot drop {name!r}: a classifier needs two classes.")
    kept = tuple(other for other in ensemble.class_names if other != name)
    rounds = tuple(
        dataclasses.replace(item, banks={other: item.banks[other] for other in kept})
        for item in ensemble.rounds
    )
    return _edited(ensemble, [f"dropped {name}"], class_names=kept, rounds=rounds)


def _check_new_name(name: str, others: Iterable[str]) -> None:
    """Raise for a name that a fit would not take beside the others: it could not be measured again."""
    try:
        # The others themselves may be as they are.
        check_class_names([*(o for o in others if name_key(o) == name_key(name)), name])
    except PoolError as error:
        raise LabelError(str(error)) from error


def check_known(ensemble: "PromptEnsemble", class_name: str) -> None:
    """Check that there is such a class, and help who mistyped it."""
    if class_name not in ensemble.class_names:
        close = difflib.get_close_matches(str(class_name), ensemble.class_names, n=3, cutoff=0)
        raise LabelError(f"There is no class {class_name!r}. Near it: {_listed(close)}.")


def _classes_with(ensemble: "PromptEnsemble", prompt: str, class_name: str | None) -> list[str]:
    """List the classes that have a prompt, or help who mistyped it."""
    if class_name is not None:
        check_known(ensemble, class_name)
    searched = ensemble.class_names if class_name is None else (class_name,)
    having = [
        name for name in searched if any(prompt in item.banks[name] for item in ensemble.rounds)
    ]
    if not having:
        texts = [text for name in searched for text in ensemble.prompts(name)]
        close = difflib.get_close_matches(prompt, texts, n=1, cutoff=0)
        where = "The ensemble" if class_name is None else f"The class {class_name!r}"
        raise PoolError(f"{where} has no prompt {prompt!r}. Near it: {_listed(close)}.")
    return having


def _count(ensemble: "PromptEnsemble", prompt: str, name: str) -> str:
    copies = [item.banks[name][prompt] for item in ensemble.rounds if prompt in item.banks[name]]
    return f"{name} ({count(sum(copies), 'copy', 'copies')} in {count(len(copies), 'round')})"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _mapped(bank: Bank, change: Callable[[str], str]) -> Bank:
    """Change texts; what becomes the same text adds up its copies."""
    changed: Counter[str] = Counter()
    for text, copies in bank.items():
        changed[change(text)] += copies
    return changed


def _rewritten(
    ensemble: "PromptEnsemble",
    classes: Iterable[str],
    change: Callable[[Bank], Bank],
    lines: list[str],
) -> "PromptEnsemble":
    """Change the banks of some classes in every round."""
    chosen = set(classes)
    rounds = tuple(
        dataclasses.replace(
            item,
            banks={n: change(bank) if n in chosen else bank for n, bank in item.banks.items()},
        )
        for item in ensemble.rounds
    )
    return _edited(ensemble, lines, rounds=rounds)


def _edited(ensemble: "PromptEnsemble", lines: list[str], **changes: object) -> "PromptEnsemble":
    history = (*ensemble.history, *lines)
    return dataclasses.replace(ensemble, history=history, **changes)  # type: ignore[arg-type]

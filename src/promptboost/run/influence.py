"""What each sentence does to the answers for many images: which help, which harm, which never matter."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.measures import Indices
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.scores import SentenceScores

#: Sentences named for each confusion.
_BLAMED = 3


@dataclass(frozen=True)
class Influence:
    """What happens to the answers when one sentence is taken out of one class.

    Attributes
    ----------
    class_name, prompt : str
        The sentence, and the class whose it is.
    weight : float
        Its share in the score of the class.
    removable : bool
        Whether it can be taken out: not where it is all there is in a round.
    mended, broken : int
        Images that become right, and that become wrong.
    changed : int
        Images that get another answer, right or wrong.
    """

    class_name: str
    prompt: str
    weight: float
    removable: bool = True
    mended: int = 0
    broken: int = 0
    changed: int = 0

    @property
    def gain(self) -> int:
        """How many more images are right without the sentence."""
        return self.mended - self.broken


@dataclass(frozen=True)
class Blame:
    """The sentences that speak most for a wrong answer.

    Attributes
    ----------
    true, answered : str
        The right class, and the one that was answered.
    count : int
        Images taken for it.
    sentences : tuple of (str, str, float)
        Class, sentence, and what it adds to the wrong lead, in the mean over these images; the sentences
        of both classes that count most for the wrong answer.
    residual : float
        What the residual adds, in the mean.
    """

    true: str
    answered: str
    count: int
    sentences: tuple[tuple[str, str, float], ...]
    residual: float


def sentence_influences(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    originals: Mapping[str, str] | None = None,
) -> list[Influence]:
    """Take out each sentence by itself, exactly; those whose loss mends most come first.

    Only the score of one class changes each time, so nothing else is computed again. `labels` are numbers
    of the text's classes, −1 for an image that does not count; `originals` are as for
    :meth:`~promptboost.model.scores.SentenceScores.logits`.

    Examples
    --------
    >>> from promptboost.model import PromptEnsemble, Round
    >>> vectors = {"a cat": [1.0, 0.0], "a dog": [0.0, 1.0], "a pet": [0.6, 0.8]}
    >>> banks = {"cat": {"a cat": 1, "a pet": 1}, "dog": {"a dog": 1}}
    >>> ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.0, 0.0),), logit_scale=10.0)
    >>> scores = SentenceScores(np.array([[0.64, 0.768]]), vectors, ensemble.embed(vectors))
    >>> first, *_ = sentence_influences(scores, ensemble, np.array([1]))
    >>> first.prompt, first.gain
    ('a pet', 1)
    """
    found = [item for part in each_influence(scores, ensemble, labels, originals) for item in part]
    return sorted(found, key=lambda item: (-item.gain, item.changed, item.class_name, item.prompt))


def each_influence(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    originals: Mapping[str, str] | None = None,
) -> Iterator[list[Influence]]:
    """Yield the influences of :func:`sentence_influences` class by class, in the order of the text."""
    if any(key.lead is not None for key in scores.class_keys(ensemble, originals)):
        # A class that was added by words alone is kept in balance: any sentence of another moves it.
        yield from _each_anew(scores, ensemble, labels, originals)
        return
    best, answers, second, next_one = scores.two_best(ensemble, originals)
    counted = labels >= 0
    right = answers == labels
    for place, name in enumerate(ensemble.class_names):
        first = answers == place
        rival, other = np.where(first, second, best), np.where(first, next_one, answers)
        known = name if originals is None else originals.get(name)
        logit = scores.class_score(ensemble.prompts(name)) * scores.factor
        if known is not None:
            logit += scores.residual_logits(known)
        found = []
        for prompt, weight, change in _without_each(scores, ensemble, name):
            if change is None:
                found.append(Influence(name, prompt, weight, removable=False))
                continue
            less = logit + scores.factor * change
            # Of equals the first class wins, as everywhere.
            wins = (less > rival) | ((less == rival) & (place < other))
            after = np.where(wins, place, other)
            now = after == labels
            found.append(
                Influence(
                    name,
                    prompt,
                    weight,
                    mended=int((now & ~right).sum()),
                    broken=int((right & ~now).sum()),
                    changed=int(((after != answers) & counted).sum()),
                )
            )
        yield found


def _each_anew(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    originals: Mapping[str, str] | None,
) -> Iterator[list[Influence]]:
    """Yield the same by asking the text without each sentence for its answers."""
    before = scores.answers(ensemble, originals)
    for name in ensemble.class_names:
        found = []
        for prompt, weight, change in _without_each(scores, ensemble, name):
            if change is None:
                found.append(Influence(name, prompt, weight, removable=False))
                continue
            after = scores.answers(ensemble.remove(prompt, name), originals)
            mended, broken = (
                (after == labels) & (before != labels),
                (before == labels) & (after != labels),
            )
            changed = (after != before) & (labels >= 0)
            counts = (int(those.sum()) for those in (mended, broken, changed))
            found.append(Influence(name, prompt, weight, True, *counts))
        yield found


def _without_each(
    scores: SentenceScores, ensemble: PromptEnsemble, name: str
) -> Iterator[tuple[str, float, NDArray[np.float64] | None]]:
    """Yield each sentence of a class, its weight, and how the class's mean cosine changes without it."""
    banks = [item.banks[name] for item in ensemble.rounds]
    sizes = [sum(bank.values()) for bank in banks]
    means = [
        scores.mean_score({text: copies / size for text, copies in bank.items()})
        for bank, size in zip(banks, sizes, strict=True)
    ]
    for prompt, weight in ensemble.prompts(name).items():
        column = scores.column(prompt)
        change: NDArray[np.float64] | None = np.zeros(len(column))
        for bank, size, mean in zip(banks, sizes, means, strict=True):
            copies = bank.get(prompt, 0)
            if copies == size:  # nothing else is in this round
                change = None
                break
            if copies and change is not None:
                change += (copies / (size - copies)) * (mean - column) / len(banks)
        yield prompt, weight, change


def confusion_blame(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    *,
    most: int | None = None,
    originals: Mapping[str, str] | None = None,
) -> list[Blame]:
    """Return which sentences are responsible for which confusion, the most frequent first.

    A sentence counts as in an :class:`~promptboost.model.explanation.Explanation` of the wrong answer
    against the right one, in the mean over the images of that confusion.
    """
    names = ensemble.class_names
    answers = scores.answers(ensemble, originals)
    wrong = np.flatnonzero((answers != labels) & (labels >= 0))
    pairs: dict[tuple[int, int], list[int]] = {}
    for image in wrong.tolist():
        pairs.setdefault((int(labels[image]), int(answers[image])), []).append(image)
    ranked = sorted(pairs.items(), key=lambda item: (-len(item[1]), item[0]))[:most]
    known = {name: name for name in names} if originals is None else originals
    return [
        _blame(scores, ensemble, names[a], names[b], images, known) for (a, b), images in ranked
    ]


def _blame(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    true: str,
    answered: str,
    images: Sequence[int],
    known: Mapping[str, str],
) -> Blame:
    each = np.array(images, dtype=np.intp)
    shares = {name: ensemble.prompts(name) for name in (answered, true)}
    middle = np.mean([scores.class_score(share, each) for share in shares.values()], axis=0)
    parts = [
        (
            name,
            text,
            float(sign * scores.factor * weight * (scores.column(text)[each] - middle).mean()),
        )
        for name, sign in ((answered, 1.0), (true, -1.0))
        for text, weight in shares[name].items()
    ]
    parts.sort(key=lambda part: -part[2])
    rest = [
        scores.residual_logits(known[name])[each] if name in known else np.zeros(len(each))
        for name in (answered, true)
    ]
    residual = float((rest[0] - rest[1]).mean())
    return Blame(true, answered, len(each), tuple(parts[:_BLAMED]), residual)

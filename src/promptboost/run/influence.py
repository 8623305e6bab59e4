"""The influence of each sentence on the answers for many images, and the sentences behind confusions."""

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.measures import Indices
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.scores import SentenceScores

#: Sentences listed for each confusion.
_LISTED = 3
_WithoutPrompt = tuple[str, float, NDArray[np.intp] | None]


class Influence(msgspec.Struct, frozen=True):
    """The effect of removing one sentence from one class.

    Attributes
    ----------
    class_name, prompt : str
        The class and its sentence.
    weight : float
        The share of the sentence in the score of the class.
    removable : bool
        Whether it can be removed: not where it is alone in a round.
    mended, broken : int
        Images that become right, and that become wrong.
    changed : int
        Images that get another answer, right or wrong.
    """

    class_name: str = msgspec.field(name="class")
    prompt: str
    weight: float
    removable: bool = True
    mended: int = 0
    broken: int = 0
    changed: int = 0

    @property
    def gain(self) -> int:
        """Number of images by which accuracy rises without the sentence."""
        return self.mended - self.broken


class SentencePart(msgspec.Struct, frozen=True):
    """What a sentence adds to the margin of a wrong answer."""

    class_name: str = msgspec.field(name="class")
    prompt: str
    value: float


class ConfusedPair(msgspec.Struct, frozen=True):
    """The sentences that contribute most to a confusion.

    Attributes
    ----------
    true, answered : str
        The right class, and the predicted one.
    count : int
        Number of images.
    sentences : tuple of SentencePart
        The sentences of both classes with the largest mean contributions to the wrong answer.
    residual : float
        The mean contribution of the residual.
    """

    true: str
    answered: str
    count: int
    sentences: tuple[SentencePart, ...]
    residual: float


def sentence_influences(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    originals: Mapping[str, str] | None = None,
) -> list[Influence]:
    """Remove each sentence alone, and count exactly; the most harmful sentences come first.

    Parameters
    ----------
    scores : SentenceScores
        The scores of the images.
    ensemble : PromptEnsemble
        The ensemble.
    labels : array of int
        Indices into the classes of the ensemble; −1 for an image that does not count.
    originals : mapping, optional
        See :meth:`~promptboost.model.scores.SentenceScores.logits`.

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
    classes = each_influence(scores, ensemble, labels, originals)
    return sorted(
        (influence for influences in classes for influence in influences),
        key=lambda i: (-i.gain, i.changed, i.class_name, i.prompt),
    )


def each_influence(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    originals: Mapping[str, str] | None = None,
) -> Iterator[list[Influence]]:
    """Yield the influences class by class, in the order of the ensemble."""
    before = scores.answers(ensemble, originals)
    right, counted = before == labels, labels >= 0
    if any(key.lead is not None for key in scores.class_keys(ensemble, originals)):
        # The bias of a class without training images depends on the sentences of all others.
        classes = _predict_without(scores, ensemble, originals)
    else:
        classes = _follow_without(scores, ensemble, originals)
    for name, prompts in zip(ensemble.class_names, classes, strict=True):
        influences = []
        for prompt, weight, after in prompts:
            if after is None:
                influences.append(Influence(name, prompt, weight, removable=False))
                continue
            now = after == labels
            counts = (now & ~right, right & ~now, (after != before) & counted)
            influences.append(
                Influence(name, prompt, weight, True, *(int(each.sum()) for each in counts))
            )
        yield influences


def _predict_without(
    scores: SentenceScores, ensemble: PromptEnsemble, originals: Mapping[str, str] | None
) -> Iterator[Iterator[_WithoutPrompt]]:
    """Yield for each class its prompts, their weights, and the answers of the ensemble without each."""

    def each(name: str) -> Iterator[_WithoutPrompt]:
        for prompt, weight in ensemble.prompts(name).items():
            alone = any(set(round_.banks[name]) == {prompt} for round_ in ensemble.rounds)
            edited = None if alone else ensemble.remove(prompt, name)
            yield prompt, weight, None if edited is None else scores.answers(edited, originals)

    return map(each, ensemble.class_names)


def _follow_without(
    scores: SentenceScores, ensemble: PromptEnsemble, originals: Mapping[str, str] | None
) -> Iterator[Iterator[_WithoutPrompt]]:
    """Yield the same where the logit of one class changes only: nothing else is computed again."""
    best, answers, second, runner_up = scores.two_best(ensemble, originals)

    def each(place: int, name: str) -> Iterator[_WithoutPrompt]:
        first = answers == place
        rival, other = np.where(first, second, best), np.where(first, runner_up, answers)
        known = name if originals is None else originals.get(name)
        logit = scores.class_score(ensemble.prompts(name)) * scores.factor
        if known is not None:
            logit += scores.residual_logits(known)
        for prompt, weight, change in _mean_changes(scores, ensemble, name):
            if change is None:
                yield prompt, weight, None
                continue
            less = logit + scores.factor * change
            # Of equals the first class wins, as everywhere.
            wins = (less > rival) | ((less == rival) & (place < other))
            yield prompt, weight, np.where(wins, place, other)

    return (each(place, name) for place, name in enumerate(ensemble.class_names))


def _mean_changes(
    scores: SentenceScores, ensemble: PromptEnsemble, name: str
) -> Iterator[tuple[str, float, NDArray[np.float64] | None]]:
    """Yield each sentence of a class, its weight, and the change of the mean cosine without it."""
    banks = [round_.banks[name] for round_ in ensemble.rounds]
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


def confused_pairs(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    *,
    most: int | None = None,
    originals: Mapping[str, str] | None = None,
) -> list[ConfusedPair]:
    """Return the confusions with the sentences behind them, the most frequent first.

    Contributions are those of an :class:`~promptboost.model.explanation.Explanation` of the wrong answer
    against the right one, averaged over the images of the confusion.
    """
    answers = scores.answers(ensemble, originals)
    wrong = np.flatnonzero((answers != labels) & (labels >= 0))
    images: dict[tuple[int, int], list[int]] = {}
    for image in wrong.tolist():
        images.setdefault((int(labels[image]), int(answers[image])), []).append(image)
    ranked = sorted(images, key=lambda pair: (-len(images[pair]), pair))[:most]
    names = ensemble.class_names
    known = {name: name for name in names} if originals is None else originals
    return [
        _confused_pair(scores, ensemble, names[a], names[b], np.array(images[a, b]), known)
        for a, b in ranked
    ]


def _confused_pair(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    true: str,
    answered: str,
    images: NDArray[np.intp],
    known: Mapping[str, str],
) -> ConfusedPair:
    signs = {answered: 1.0, true: -1.0}
    shares = {name: ensemble.prompts(name) for name in signs}
    middle = np.mean([scores.class_score(share, images) for share in shares.values()], axis=0)
    parts = [
        SentencePart(
            name,
            text,
            float(sign * scores.factor * weight * (scores.column(text)[images] - middle).mean()),
        )
        for name, sign in signs.items()
        for text, weight in shares[name].items()
    ]
    parts.sort(key=lambda part: -part.value)
    rests = [
        sign * scores.residual_logits(known[name])[images].mean()
        for name, sign in signs.items()
        if name in known
    ]
    return ConfusedPair(true, answered, len(images), tuple(parts[:_LISTED]), float(sum(rests)))

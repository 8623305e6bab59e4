"""The influence of each sentence on the predictions, and the sentences behind confusions."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines import Indices
from promptboost.config import BoostConfig
from promptboost.encoders.embedder import TextSource, embed_texts
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.scores import SentenceScores
from promptboost.training.examples import Examples
from promptboost.training.pool_rows import PoolRows, PoolTexts

#: Sentences listed for each confusion.
_LISTED = 3
# A prompt, its weight, and without it the predictions and the change of each margin.
_WithoutPrompt = tuple[str, float, tuple[NDArray[np.intp], NDArray[np.float64]] | None]


class Influence(msgspec.Struct, frozen=True):
    """The effect of removing one sentence from one class."""

    # the class and its sentence
    class_name: str = msgspec.field(name="class")
    prompt: str
    weight: float  # the share of the sentence in the score of the class
    removable: bool = True  # whether it can be removed: it is not the only one in a round
    # images that become right, and that become wrong
    mended: int = 0
    broken: int = 0
    changed: int = 0  # images whose prediction changes
    # what the margins of all images lose, per image of the class. The margin of an image is the
    # logit of its label minus the best other logit.
    margin: float = 0.0

    @property
    def matters(self) -> bool:
        """Whether removing the sentence lowers margins or raises errors."""
        return not self.removable or self.margin > 0 or self.gain < 0

    @property
    def gain(self) -> int:
        """Number of images gained by removing the sentence."""
        return self.mended - self.broken


class SentencePart(msgspec.Struct, frozen=True):
    """The contribution of a sentence to the margin of a wrong prediction."""

    class_name: str = msgspec.field(name="class")
    prompt: str
    value: float


class ConfusedPair(msgspec.Struct, frozen=True):
    """The sentences that contribute most to a confusion."""

    # the right class, and the predicted one
    true: str
    answered: str
    count: int  # number of images
    # the sentences of both classes with the largest mean contributions to the wrong answer
    sentences: tuple[SentencePart, ...]
    residual: float  # the mean contribution of the residual


def sentence_influences(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    originals: Mapping[str, str] | None = None,
) -> list[Influence]:
    """Remove each sentence alone, and count exactly; the most harmful sentences come first.

    `labels` are −1 for images to ignore. For `originals`, see
    :meth:`~promptboost.model.scores.SentenceScores.logits`.
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
    answers = scores.answers(ensemble, originals)
    right, counted = answers == labels, labels >= 0
    if any(key.lead is not None for key in scores.class_keys(ensemble, originals)):
        # The bias of a class without training images depends on the sentences of all others.
        classes = _predict_without(scores, ensemble, labels, originals)
    else:
        classes = _follow_without(scores, ensemble, labels, originals)
    for index, (name, prompts) in enumerate(zip(ensemble.class_names, classes, strict=True)):
        influences, size = [], max(1, int((labels == index).sum()))
        for prompt, weight, without in prompts:
            if without is None:
                influences.append(Influence(name, prompt, weight, removable=False))
                continue
            after, change = without
            now = after == labels
            influences.append(
                Influence(
                    name,
                    prompt,
                    weight,
                    mended=int((now & ~right).sum()),
                    broken=int((right & ~now).sum()),
                    changed=int(((after != answers) & counted).sum()),
                    margin=-float(change[counted].sum()) / size,
                )
            )
        yield influences


def training_influences(
    ensemble: PromptEnsemble, examples: Examples, source: TextSource, config: BoostConfig
) -> list[Influence]:
    """Remove each sentence alone, and measure on training images that its weight was not fitted on.

    The sentences are those of the ensemble; their weights are fitted anew without the images of each fold.
    Return an empty list if a class has only one image or none, if each class is one group, or for a
    greedy ensemble.
    """
    # Compiled code, which other uses of this module do not need.
    from promptboost.boosting.scale import held_out_folds
    from promptboost.training.trainer import Trainer

    sizes = np.bincount(examples.labels, minlength=len(ensemble.class_names))
    if sizes.min() < 2 or config.composer != "gradient":
        return []
    fold, texts = held_out_folds(examples.labels, examples.groups), ensemble.texts()
    if fold.max() < 0:
        return []
    vectors = dict(zip(texts, embed_texts(source, texts), strict=True))
    prompts = [tuple(ensemble.prompts(name)) for name in ensemble.class_names]
    # Every bank starts with its heaviest sentence.
    firsts = tuple(sentences[:1] for sentences in prompts)
    pool_texts = PoolTexts(ensemble.class_names, ("{}",), firsts, tuple(prompts))
    pool = PoolRows.embed(pool_texts, vectors)
    pool = replace(pool, grid=replace(pool.grid, skipped=()))
    scale = ensemble.settings.get("logit_scale")
    scale = float(scale) if isinstance(scale, int | float) else None
    config = replace(config, rounds=1, residual=False, logit_scale=scale)
    parts: dict[tuple[str, str], list[Influence]] = {}
    for number in range(fold.max() + 1):
        held_out = np.flatnonzero(fold == number)
        learned = examples.subset(np.flatnonzero(fold != number))
        text = Trainer(config).fit(learned, pool, [vectors]).ensemble
        text = replace(text, logit_scale=ensemble.logit_scale)
        scores = SentenceScores(examples.rows[held_out], vectors, text.embed(vectors))
        for influences in each_influence(scores, text, examples.labels[held_out]):
            for influence in influences:
                parts.setdefault((influence.class_name, influence.prompt), []).append(influence)

    def combined(name: str, prompt: str, weight: float) -> Influence:
        """Add up the folds where the sentence has a weight; the margin is the mean over all folds."""
        folds = parts.get((name, prompt), [])
        return Influence(
            name,
            prompt,
            weight,
            removable=len(ensemble.prompts(name)) > 1,
            mended=sum(influence.mended for influence in folds),
            broken=sum(influence.broken for influence in folds),
            changed=sum(influence.changed for influence in folds),
            margin=sum(influence.margin for influence in folds) / int(fold.max() + 1),
        )

    return [
        combined(name, prompt, weight)
        for name in ensemble.class_names
        for prompt, weight in ensemble.prompts(name).items()
    ]


def _predict_without(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    originals: Mapping[str, str] | None,
) -> Iterator[Iterator[_WithoutPrompt]]:
    """Yield for each class its prompts, their weights, and what changes without each."""
    margins = scores.margins(ensemble, labels, originals)

    def each(name: str) -> Iterator[_WithoutPrompt]:
        for prompt, weight in ensemble.prompts(name).items():
            if any(set(round_.banks[name]) == {prompt} for round_ in ensemble.rounds):
                yield prompt, weight, None
                continue
            edited = ensemble.remove(prompt, name)
            change = scores.margins(edited, labels, originals) - margins
            yield prompt, weight, (scores.answers(edited, originals), change)

    return map(each, ensemble.class_names)


def _follow_without(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    labels: Indices,
    originals: Mapping[str, str] | None,
) -> Iterator[Iterator[_WithoutPrompt]]:
    """Yield the same as :func:`_predict_without`, computing only the logit that changes."""
    best, answers, second, runner_up = scores.two_best(ensemble, originals)
    wrong, wrong_class, next_wrong, _ = scores.two_best(ensemble, originals, labels)

    def each(index: int, name: str) -> Iterator[_WithoutPrompt]:
        first = answers == index
        rival, other = np.where(first, second, best), np.where(first, runner_up, answers)
        original = name if originals is None else originals.get(name)
        logit = scores.class_score(ensemble.prompts(name)) * scores.factor
        if original is not None:
            logit += scores.residual_logits(original)
        # The best other logit among the classes that stay the same.
        fixed = np.where(wrong_class == index, next_wrong, wrong)
        for prompt, weight, change in _mean_changes(scores, ensemble, name):
            if change is None:
                yield prompt, weight, None
                continue
            less = logit + scores.factor * change
            # Ties go to the first class.
            wins = (less > rival) | ((less == rival) & (index < other))
            margin_change = np.where(
                labels == index, scores.factor * change, wrong - np.maximum(fixed, less)
            )
            yield prompt, weight, (np.where(wins, index, other), margin_change)

    return (each(index, name) for index, name in enumerate(ensemble.class_names))


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

    Contributions are those of :class:`~promptboost.model.prediction.Explanation`, averaged over the images.
    """
    answers = scores.answers(ensemble, originals)
    wrong = np.flatnonzero((answers != labels) & (labels >= 0))
    images: dict[tuple[int, int], list[int]] = {}
    for image in wrong.tolist():
        images.setdefault((int(labels[image]), int(answers[image])), []).append(image)
    ranked = sorted(images, key=lambda pair: (-len(images[pair]), pair))[:most]
    names = ensemble.class_names
    fit_names = {name: name for name in names} if originals is None else originals
    return [
        _confused_pair(scores, ensemble, names[a], names[b], np.array(images[a, b]), fit_names)
        for a, b in ranked
    ]


def _confused_pair(
    scores: SentenceScores,
    ensemble: PromptEnsemble,
    true: str,
    answered: str,
    images: NDArray[np.intp],
    fit_names: Mapping[str, str],
) -> ConfusedPair:
    signs = {answered: 1.0, true: -1.0}
    shares = {name: ensemble.prompts(name) for name in signs}
    middle = np.mean([scores.class_score(share, images) for share in shares.values()], axis=0)
    sentences = [
        SentencePart(
            name,
            text,
            float(sign * scores.factor * weight * (scores.column(text)[images] - middle).mean()),
        )
        for name, sign in signs.items()
        for text, weight in shares[name].items()
    ]
    sentences.sort(key=lambda sentence: -sentence.value)
    residuals = [
        sign * scores.residual_logits(fit_names[name])[images].mean()
        for name, sign in signs.items()
        if name in fit_names
    ]
    return ConfusedPair(
        true, answered, len(images), tuple(sentences[:_LISTED]), float(sum(residuals))
    )

"""Controls for content: how much of the text's accuracy comes from what the descriptions say.

The descriptions of the fitted text are replaced: by those of another class, and by random words of equal
length. Class names and templates stay, and the weights are fitted again, so that a control can make the
best of the class names and of what training images teach about any sentences.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

import msgspec
import numpy as np

from promptboost.baselines import Indices, Share
from promptboost.config import BoostConfig
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import Embedder
from promptboost.errors import percent
from promptboost.model import PromptEnsemble
from promptboost.pool import PromptPool
from promptboost.pool.grammar import without_determiner
from promptboost.training.examples import Examples
from promptboost.training.pool_rows import PoolRows, PoolTexts

# Texts of each class that random words are drawn from; a class may have tens of thousands.
_TEXTS = 200
_WORD = re.compile(r"\w+")


class ControlResult(msgspec.Struct, frozen=True):
    """Accuracy of the text alone, and refitted with other descriptions in the place of its own."""

    # accuracy of the text, with descriptions of another class, and with random words of equal
    # length
    text: Share
    swapped: Share
    random_words: Share
    # what the text gains over the better control: the accuracy that comes from the descriptions'
    # content
    gain: float

    def __str__(self) -> str:
        points = f"{100 * self.gain:.1f} points come" if self.gain > 0 else "no accuracy comes"
        return (
            f"{percent(self.text)} by the text; refitted with descriptions of other classes "
            f"{percent(self.swapped)}, with random words {percent(self.random_words)}: {points} from what "
            "the descriptions say"
        )


@dataclass(frozen=True)
class Description:
    """A chosen description: the filled template before it, which stays, and its sentence."""

    start: str
    sentence: str

    @property
    def text(self) -> str:
        """The prompt."""
        return f"{self.start} {self.sentence}" if self.start else self.sentence


@dataclass(frozen=True)
class DescribedClass:
    """A class, its noun phrase, and the descriptions in its banks, heaviest first."""

    name: str
    phrase: str
    descriptions: tuple[Description, ...]

    @property
    def words(self) -> str:
        """The noun of the class in sentences."""
        return without_determiner(self.phrase.replace("_", " "))

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that finds the class in sentences, in the singular or the plural."""
        spellings = {
            r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", name)))
            for name in (self.words, self.name)
        }
        longest_first = "|".join(sorted(spellings, key=lambda spelling: (-len(spelling), spelling)))
        return re.compile(rf"(?<!\w)(?:{longest_first})(?:e?s)?(?!\w)", re.IGNORECASE)


def described_classes(
    prompts: Mapping[str, Iterable[str]], pool: PromptPool
) -> list[DescribedClass]:
    """Return the classes with descriptions among their prompts, that is, with more than templates."""
    filled = dict(zip(pool.class_names, pool.template_texts(), strict=True))
    phrases = dict(zip(pool.class_names, pool.phrases, strict=True))
    classes = []
    for name, chosen in prompts.items():
        starts = sorted(filled.get(name, ()), key=len, reverse=True)
        texts = [text for text in chosen if text not in starts]
        halves = [
            (next((s for s in starts if text.startswith(f"{s} ")), ""), text) for text in texts
        ]
        descriptions = [Description(start, text[len(start) :].strip()) for start, text in halves]
        if descriptions:
            classes.append(DescribedClass(name, phrases.get(name, name), tuple(descriptions)))
    return classes


def swap_descriptions(classes: Sequence[DescribedClass]) -> dict[str, dict[str, str]]:
    """Replace each description by one of another class, which names the class as it did.

    No class keeps its own; the classes are shuffled once, and each takes those of the next.
    """
    order = Random("swapped descriptions").sample(classes, len(classes))
    new: dict[str, dict[str, str]] = {}
    for mine, other in zip(order, [*order[1:], *order[:1]], strict=True):
        sentences, named = {d.sentence for d in mine.descriptions}, mine.pattern()
        words = mine.words.replace("\\", r"\\")
        renamed = [other.pattern().sub(words, d.sentence) for d in other.descriptions]
        usable = [sentence for sentence in renamed if sentence not in sentences] or renamed
        new[mine.name] = {}
        for number, description in enumerate(mine.descriptions):
            names_class = named.search(description.sentence) is not None
            alike = [s for s in usable if (named.search(s) is not None) == names_class]
            sentence = (alike or usable)[number % len(alike or usable)]
            if names_class and not alike:
                sentence = f"{mine.words}: {sentence}"
            new[mine.name][description.text] = replace(description, sentence=sentence).text
    return new


def randomize_words(
    classes: Sequence[DescribedClass], pool: PromptPool
) -> dict[str, dict[str, str]]:
    """Replace each word of the descriptions by a random one of equal length, except the class name."""
    texts = (text for name in pool.class_names for text in islice(pool.texts(name), _TEXTS))
    by_length: dict[int, list[str]] = {}
    for word in sorted({word for text in texts for word in _WORD.findall(text.lower())}):
        by_length.setdefault(len(word), []).append(word)

    def random_word(word: str, avoided: set[str], random: Random) -> str:
        for length in sorted(by_length, key=lambda length: abs(length - len(word))):
            if words := [w for w in by_length[length] if w not in avoided]:
                return random.choice(words)
        return word

    def random_sentence(described: DescribedClass, sentence: str) -> str:
        avoided = set(_WORD.findall(sentence.lower()))
        random = Random(f"{described.name}\n{sentence}")
        name_or_word = f"(?P<name>{described.pattern().pattern})|{_WORD.pattern}"
        return re.sub(
            name_or_word,
            lambda match: match[0] if match["name"] else random_word(match[0], avoided, random),
            sentence,
            flags=re.IGNORECASE,
        )

    return {
        described.name: {
            d.text: replace(d, sentence=random_sentence(described, d.sentence)).text
            for d in described.descriptions
        }
        for described in classes
    }


def control_texts(
    ensemble: PromptEnsemble,
    pool: PromptPool,
    examples: Examples,
    embedder: Embedder,
    config: BoostConfig,
) -> tuple[PromptEnsemble, PromptEnsemble] | None:
    """Return the text with descriptions of other classes, and with random words, fitted to the images.

    Return None unless two classes have descriptions, and all classes have images.
    """
    # Compiled code, which other uses of this module do not need.
    from promptboost.training.trainer import Trainer

    chosen = {name: tuple(ensemble.prompts(name)) for name in ensemble.class_names}
    classes = described_classes(chosen, pool)
    if len(classes) < 2 or len(set(examples.labels.tolist())) < len(chosen):
        return None
    template = ensemble.rounds[0].template
    # A refitted text may come from another pool.
    number = pool.templates.index(template) if template in pool.templates else 0
    filled = dict(zip(pool.class_names, pool.template_texts(), strict=True))
    starts = tuple((filled[name][number],) for name in chosen)
    scale = ensemble.settings.get("logit_scale")
    scale = scale if isinstance(scale, int | float) else None
    trainer = Trainer(replace(config, residual=False, logit_scale=scale))

    def fitted(new: Mapping[str, Mapping[str, str]]) -> PromptEnsemble:
        texts = [[new.get(name, {}).get(text, text) for text in chosen[name]] for name in chosen]
        prompts = [
            tuple(dict.fromkeys(text for text in bank if text != start)) or (start,)
            for bank, (start,) in zip(texts, starts, strict=True)
        ]
        pool_texts = PoolTexts(tuple(chosen), (template,), starts, tuple(prompts))
        rows = PoolRows.embed(pool_texts, embedder)
        return trainer.fit(examples, rows, [embedder]).ensemble

    return fitted(swap_descriptions(classes)), fitted(randomize_words(classes, pool))


def measure_controls(
    ensemble: PromptEnsemble,
    controls: tuple[PromptEnsemble, PromptEnsemble] | None,
    embedder: Embedder,
    rows: UnitRows,
    labels: Indices,
) -> ControlResult | None:
    """Measure the text and both controls of :func:`control_texts`."""
    if controls is None or not len(labels):
        return None
    texts = (ensemble, *controls)
    text, swapped, random_words = (
        float(np.mean(t.embed(embedder).predict_index(rows) == labels)) for t in texts
    )
    return ControlResult(text, swapped, random_words, text - max(swapped, random_words))

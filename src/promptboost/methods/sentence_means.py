"""Methods that learn nothing: each class is the mean of some sentences about it."""

import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import PoolError, SettingError
from promptboost.methods.base import Bank, FewShotSet, Group, Method, Transfer, check_numbers
from promptboost.methods.fitted import TextClassifier, filled
from promptboost.pool import PromptPool, fill
from promptboost.pool.pool import sentences
from promptboost.pool.templates import PLAIN_TEMPLATE, connect


class SentenceMean(Method):
    """What such methods share: all they do is gather the sentences of each class."""

    group: ClassVar[Group] = Group.TEXT
    carries_over: ClassVar[Transfer] = Transfer.TEXT
    learns: ClassVar[bool] = False
    # Whether images are compared with the mean row; if not, their cosines are averaged.
    unit: ClassVar[bool] = True

    @abstractmethod
    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Return the sentences of each class; raise an error if there are none to take."""

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that the sentences are there."""
        self.banks(shots, pool)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Gather the sentences."""
        banks = self.banks(shots, pool)
        return TextClassifier(self.origin(shots, encoder), banks, unit=self.unit)


@dataclass(frozen=True)
class ZeroShot(SentenceMean):
    """Class names in a template.

    Parameters
    ----------
    template : str
        A sentence with one ``{}``; ``"all"`` for the mean of the pool's templates; ``"dataset"``
        for the one that comes with a benchmark.
    """

    name: ClassVar[str] = "zero-shot"

    template: str = PLAIN_TEMPLATE

    def __post_init__(self) -> None:
        if self.template not in ("all", "dataset") and self.template.count("{}") != 1:
            raise SettingError(
                f"template is {self.template!r}, but must have one {{}} for the class name, or be "
                "'all' or 'dataset'"
            )

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Fill the templates."""
        if self.template == "all" and not pool.templates:
            raise SettingError(
                "its text is the mean of the pool's templates, and the pool has none; build a pool "
                f"with templates, or name one as in zero-shot?template={PLAIN_TEMPLATE}"
            )
        if self.template == "dataset" and shots.template is None:
            raise SettingError(
                "only a benchmark has a template of its own; for other images type "
                "zero-shot?template=YOUR {} TEMPLATE"
            )
        one = shots.template if self.template == "dataset" else self.template
        return filled(pool.templates if self.template == "all" else (str(one),), shots.class_names)


@dataclass(frozen=True)
class DCLIP(SentenceMean):
    """A class with each of its descriptors: "owl, which has large eyes.".

    Re-implemented. An image's score is the mean of its cosines with a class's prompts, not its
    cosine with their mean. A class without descriptors is its name alone. Connectors are those of
    promptboost's reader of DCLIP files, which looks at whole words: "antlers" does not begin with
    "a". Every prompt ends with a dot, as the original's do for ImageNet only.

    Parameters
    ----------
    sources : str
        Names of description sources, with commas. Descriptors may be fragments ("a hooked beak")
        or sentences that the reader has made of them already.
    """

    name: ClassVar[str] = "dclip"
    unit: ClassVar[bool] = False

    sources: str = "dclip"

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Connect each descriptor to its class."""
        by_class = dict(zip(pool.class_names, sentences(pool, self.sources), strict=True))
        banks: list[Bank] = []
        for name in shots.class_names:
            plain = name.replace("_", " ")
            texts = [_connected(plain, prompt.text) for prompt in by_class[name]] or [plain]
            banks.append(dict.fromkeys(texts, 1.0))
        return tuple(banks)


def _connected(class_name: str, descriptor: str) -> str:
    if descriptor.lower().startswith(f"{class_name.lower()}, which "):
        return descriptor
    return connect(class_name, descriptor)


@dataclass(frozen=True)
class CuPL(SentenceMean):
    """The mean of a class's sentences as they are.

    Re-implemented. A sentence that a file repeats counts once, because a pool has it once.

    Parameters
    ----------
    templates : bool
        Put the pool's templates into the mean as well.
    sources : str
        Names of description sources, with commas.
    """

    name: ClassVar[str] = "cupl"

    templates: bool = False
    sources: str = "cupl"

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Gather templates and sentences."""
        by_class = dict(zip(pool.class_names, sentences(pool, self.sources), strict=True))
        templates = pool.templates if self.templates else ()
        if self.templates and not templates:
            raise PoolError(
                "it takes the pool's templates into the mean, and the pool has none; type cupl for "
                "the sentences alone"
            )
        banks: list[Bank] = []
        for name in shots.class_names:
            texts = [fill(t, name) for t in templates] + [p.text for p in by_class[name]]
            if not texts:
                raise PoolError(
                    f"the class {name!r} has no sentences from {self.sources!r}: add some to the "
                    "pool, or type cupl+templates, which also has the templates"
                )
            banks.append(dict.fromkeys(texts, 1.0))
        return tuple(banks)


@dataclass(frozen=True)
class PoolMean(SentenceMean):
    """The mean of everything that the pool has for a class.

    It tells what choosing prompts is worth: the same words, none of them chosen.
    """

    name: ClassVar[str] = "pool-mean"

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check nothing: a large pool should not be written out twice."""

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Take all texts."""
        return tuple(dict.fromkeys(pool.texts(name), 1.0) for name in shots.class_names)


_EVERYDAY = """
    able about above across after again almost along already always among another around away
    because before behind below beside better between beyond bring build carry central certain
    change choice clear close common complete consider continue contrast correct couple current
    decide deeper degree different direct double during early either empty enough entire equal
    event every example expect explain familiar feeling figure final first follow formal former
    forward further general gentle given greater happen heavy higher however image important
    increase inside instead interest involve itself language large later latter learn letter level
    limit listen little local longer manner matter meaning measure member memory middle minute moment
    moreover nearly neither never normal nothing notice number object often opinion order other
    outside partly pattern perhaps person please possible prefer present prove public quality
    question quickly quiet rather reason recent regular relate remain repeat result return second
    several short should similar simple single slowly something special steady still strange strong
    subject sudden suggest surprise system theory thing thought through together toward travel
    twice under unusual upper usual value various version volume weight whether whole without wonder
"""

#: Words to draw from, of no subject; the authors have a longer list of their own.
WORDS = tuple(_EVERYDAY.split())


@dataclass(frozen=True)
class WaffleCLIP(SentenceMean):
    """A class name with random words or letters: "a photo of an owl, which has wond thin.".

    Re-implemented. Every draw is a pair, of words and of letters, as long as the names of the classes
    are on the average: as many words, cut to their mean length, and as many groups of letters. All
    classes have the same draws. An image's score is the mean of its cosines with a class's prompts.
    No image is looked at and no pool.

    The authors draw words from a list of their own and letters from an LLM's descriptors; here the
    words are :data:`WORDS` and the letters a to z. They write "which is" before what begins with "a".

    Parameters
    ----------
    pairs : int
        Pairs of draws: half as many as a class has prompts.
    template : str
        A sentence with one ``{}``; the draws are put before its full stop.
    seed : int
        Decides the draws.

    Examples
    --------
    >>> WaffleCLIP(pairs=1, seed=5).noises(["barn owl", "king penguin"])
    ['pers simi', 'avmn, qhzb']
    """

    name: ClassVar[str] = "waffle"
    unit: ClassVar[bool] = False

    pairs: int = 15
    template: str = PLAIN_TEMPLATE
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, counts=("pairs",))
        if self.template.count("{}") != 1:
            raise SettingError(
                f"template is {self.template!r}, but must have one {{}} for the class name"
            )

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Put the draws behind the name of each class."""
        stem = self.template.rstrip(".")
        # What is drawn twice counts twice.
        counts = Counter(f"{stem}, which has {noise}." for noise in self.noises(shots.class_names))
        return tuple(
            {fill(text, name): float(count) for text, count in counts.items()}
            for name in shots.class_names
        )

    def noises(self, class_names: Sequence[str]) -> list[str]:
        """Draw words and letters, a pair after the other, as long as the names are."""
        names = [name.replace("_", " ").split() for name in class_names]
        words = max(round(float(np.mean([len(name) for name in names]))), 1)
        length = max(round(float(np.mean([np.mean([*map(len, name)]) for name in names]))), 1)
        groups = round(float(np.mean([len(name) - 1 for name in names]))) + 1
        letters = int(np.ceil(np.mean([max(map(len, name)) for name in names])))
        # The authors round up to a multiple of the groups, and one further where it is one.
        each = letters // groups + 1
        rng = np.random.default_rng(self.seed)
        noises: list[str] = []
        for _ in range(self.pairs):
            drawn = rng.choice(WORDS, size=words)
            noises.append(" ".join(str(word)[:length] for word in drawn))
            rows = rng.choice(list(string.ascii_lowercase), size=(groups, each))
            noises.append(", ".join("".join(row) for row in rows))
        return noises

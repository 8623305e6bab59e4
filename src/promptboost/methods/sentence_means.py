"""Methods without training: each class is the mean of some sentences about it."""

import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder
from promptboost.errors import PoolError, SettingError
from promptboost.methods.base import (
    Bank,
    FewShotSet,
    Method,
    Transfer,
    check_numbers,
    check_two_classes,
)
from promptboost.methods.fitted import TextClassifier, filled
from promptboost.pool import PromptPool, fill
from promptboost.pool.pool import sentences
from promptboost.pool.templates import PLAIN_TEMPLATE, connect, places, plain_template
from promptboost.pool.text import plain_name


class SentenceMean(Method):
    """Base of methods that only select the sentences of each class."""

    carries_over: ClassVar[Transfer] = Transfer.TEXT
    learns: ClassVar[bool] = False
    # Scale the mean row to length one; if not, logits are mean cosines.
    unit: ClassVar[bool] = True

    @abstractmethod
    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Return the sentences of each class; raise an error if there are none."""

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that every class has sentences."""
        self.banks(shots, pool)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Return the classifier of the sentences."""
        banks = self.banks(shots, pool)
        return TextClassifier(self.origin(shots, encoder), banks, unit=self.unit)


@dataclass(frozen=True)
class ZeroShot(SentenceMean):
    """Class names in a template."""

    name: ClassVar[str] = "zero-shot"

    # A sentence with one ``{}``; ``"all"`` for the mean of the pool's templates; ``"dataset"`` for
    # the one that comes with a benchmark
    template: str = PLAIN_TEMPLATE

    def __post_init__(self) -> None:
        if self.template not in ("all", "dataset") and places(self.template) != 1:
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
        template = str(shots.template) if self.template == "dataset" else self.template
        if template == PLAIN_TEMPLATE:
            template = plain_template(pool.templates)
        templates = pool.templates if template == "all" else (template,)
        phrases = dict(zip(pool.class_names, pool.phrases, strict=True))
        return filled(templates, [phrases.get(name, name) for name in shots.class_names])


@dataclass(frozen=True)
class DCLIP(SentenceMean):
    """A class with each of its descriptors: "owl, which has large eyes.".

    Re-implemented. Logits are mean cosines with a class's prompts, not the cosine with their mean. A
    class without descriptors is its name alone. Connectors are those of promptboost's reader of DCLIP
    files, which compares whole words: "antlers" does not begin with "a". Every prompt ends with a dot,
    as the original's do for ImageNet only.
    """

    name: ClassVar[str] = "dclip"
    unit: ClassVar[bool] = False

    # Comma-separated description sources, of fragments ("a hooked beak") or of sentences that the
    # reader has made of them
    sources: str = "dclip"

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Connect each descriptor to its class."""
        by_class = dict(zip(pool.class_names, sentences(pool, self.sources), strict=True))
        banks: list[Bank] = []
        for name in shots.class_names:
            plain = plain_name(name)
            texts = [_connected(plain, prompt.text) for prompt in by_class[name]] or [plain]
            banks.append(dict.fromkeys(texts, 1.0))
        return tuple(banks)


def _connected(class_name: str, descriptor: str) -> str:
    if descriptor.lower().startswith(f"{class_name.lower()}, which "):
        return descriptor
    return connect(class_name, descriptor)


@dataclass(frozen=True)
class CuPL(SentenceMean):
    """The mean of a class's sentences.

    Re-implemented. Repeated sentences count once, as a pool has each only once.
    """

    name: ClassVar[str] = "cupl"

    templates: bool = False  # include the pool's templates
    sources: str = "cupl"  # comma-separated description sources

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Return templates and sentences."""
        by_class = dict(zip(pool.class_names, sentences(pool, self.sources), strict=True))
        templates = pool.templates if self.templates else ()
        if self.templates and not templates:
            raise PoolError(
                "it includes the pool's templates, and the pool has none; type cupl for the sentences "
                "alone"
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
    """The mean of all templates and sentences of a class: the baseline of choosing prompts."""

    name: ClassVar[str] = "pool-mean"

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Accept any pool, without listing a large one."""

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Return all texts."""
        return tuple(dict.fromkeys(pool.texts(name), 1.0) for name in shots.class_names)


@dataclass(frozen=True)
class TextAdapter(Method):
    """Base of methods that add the embeddings of images to the text of each class."""

    carries_over: ClassVar[Transfer] = Transfer.REFIT
    #: Why every class needs an image.
    reason: ClassVar[str]

    # Text of each class, as in ``zero-shot``. The mean of the pool's templates by default.
    template: str = "all"

    def __post_init__(self) -> None:
        ZeroShot(self.template)  # validates the template

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that every class has images and that the text is available."""
        check_two_classes(shots, self.name, self.reason)
        ZeroShot(self.template).check(shots, pool, encoder)

    def text_rows(
        self, shots: FewShotSet, pool: PromptPool, encoder: Encoder
    ) -> NDArray[np.float32]:
        """Return the text embedding of each class, (K, D), after the check."""
        self.check(shots, pool, encoder)
        return ZeroShot(self.template).fit(shots, pool, encoder).rows


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

#: Words to draw from; the authors have a longer list of their own.
WORDS = tuple(_EVERYDAY.split())


@dataclass(frozen=True)
class WaffleCLIP(SentenceMean):
    """A class name with random words or letters: "a photo of an owl, which has wond thin.".

    Re-implemented. Every draw is a pair, of words and of letters, with the mean number and length of the
    words in the class names. All classes have the same draws. Logits are mean cosines with a class's
    prompts. Images and pool are not used.
    """

    name: ClassVar[str] = "waffle"
    unit: ClassVar[bool] = False

    pairs: int = 15  # number of draws, half the number of prompts per class
    # A sentence with one ``{}``; the draws are inserted before its full stop
    template: str = PLAIN_TEMPLATE
    seed: int = 0  # seed for the draws

    def __post_init__(self) -> None:
        check_numbers(self, counts=("pairs",))
        if places(self.template) != 1:
            raise SettingError(
                f"template is {self.template!r}, but must have one {{}} for the class name"
            )

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Return the prompts of each class, with the same draws."""
        stem = self.template.rstrip(".")
        # Repeated draws count repeatedly.
        counts = Counter(f"{stem}, which has {noise}." for noise in self.noises(shots.class_names))
        return tuple(
            {fill(text, name): float(count) for text, count in counts.items()}
            for name in shots.class_names
        )

    def noises(self, class_names: Sequence[str]) -> list[str]:
        """Draw pairs of words and of letters."""
        names = [plain_name(name).split() for name in class_names]
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

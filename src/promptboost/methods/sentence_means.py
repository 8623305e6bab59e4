"""Methods that learn nothing: each class is the mean of some sentences about it."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from promptboost.encoders.base import Encoder
from promptboost.errors import PoolError, SettingError
from promptboost.methods.base import Bank, FewShotSet, Group, Method, Transfer
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

"""CuPL, and its like: each class is the mean of the sentences that a pool has about it."""

from dataclasses import dataclass
from typing import ClassVar

from promptboost.encoders.base import Encoder
from promptboost.errors import PoolError
from promptboost.methods.base import Bank, FewShotSet, Group, Method, Transfer
from promptboost.methods.fitted import TextClassifier
from promptboost.pool import PromptPool, fill
from promptboost.pool.combination import sentences


@dataclass(frozen=True)
class CuPL(Method):
    """The mean of a class's sentences as they are; nothing is learnt.

    Re-implemented. A sentence that a file repeats counts once, because a pool has it once.

    Parameters
    ----------
    templates : bool
        Put the pool's templates into the mean as well.
    sources : str
        Names of description sources, with commas.

    Examples
    --------
    >>> from promptboost.testing import colour_shots
    >>> from promptboost.pool import build_pool
    >>> shots, encoder = colour_shots("fire", "ice")
    >>> sentences = {"fire": ["fire is red"], "ice": ["ice is blue"]}
    >>> pool = build_pool(["fire", "ice"], templates=["a {}."], descriptions={"CuPL": sentences})
    >>> CuPL(templates=True).fit(shots, pool, encoder).words()[1]
    {'an ice.': 1.0, 'ice is blue': 1.0}
    """

    name: ClassVar[str] = "cupl"
    group: ClassVar[Group] = Group.TEXT
    carries_over: ClassVar[Transfer] = Transfer.TEXT
    learns: ClassVar[bool] = False

    templates: bool = False
    sources: str = "cupl"

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that every class has sentences."""
        self._banks(shots, pool)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Gather the sentences."""
        return TextClassifier(self.origin(shots, encoder), self._banks(shots, pool))

    def _banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
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
class PoolMean(Method):
    """The mean of everything that the pool has for a class; nothing is learnt.

    It tells what choosing prompts is worth: the same words, none of them chosen.

    Examples
    --------
    >>> from promptboost.testing import colour_shots
    >>> from promptboost.pool import build_pool
    >>> shots, encoder = colour_shots("red", "blue")
    >>> fitted = PoolMean().fit(shots, build_pool(["red", "blue"]), encoder)
    >>> len(fitted.words()[0]), fitted.predict(shots.images).tolist()
    (80, [0, 0, 1, 1])
    """

    name: ClassVar[str] = "pool-mean"
    group: ClassVar[Group] = Group.TEXT
    carries_over: ClassVar[Transfer] = Transfer.TEXT
    learns: ClassVar[bool] = False

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Take all texts."""
        banks = (dict.fromkeys(pool.texts(name), 1.0) for name in shots.class_names)
        return TextClassifier(self.origin(shots, encoder), tuple(banks))

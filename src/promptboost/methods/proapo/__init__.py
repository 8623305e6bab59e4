"""ProAPO: an evolutionary search for templates, then for the names and sentences of each class."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder
from promptboost.errors import PoolError
from promptboost.methods.base import FewShotSet, Method, Transfer, check_numbers
from promptboost.methods.fitted import TextClassifier, embed_distinct
from promptboost.methods.proapo.class_search import ClassSearch, ClassUnits, units_of
from promptboost.methods.proapo.evolution import Candidate, Evolution, Fitness, falls_too_far
from promptboost.pool import PromptPool, fill
from promptboost.pool.pool import sentence_sources, sentences
from promptboost.pool.templates import LITERAL, plain_template

# Sources whose name starts so have synonyms of the classes.
_SYNONYMS = "synonym"
_USUAL_SOURCE = "cupl"


@dataclass(frozen=True)
class ProAPO(Method):
    """Sets of prompts that evolve by their fitness on the training images.

    Re-implemented. The first search is for templates that all classes share, the second, for a few
    groups of classes, for names and sentences behind them. Fitness is ``top1_weight`` · top-1 % +
    ``top5_weight`` · top-5 % - 10 · cross-entropy, on the training images only: the released code
    records test accuracy, this does not.

    Other differences: groups are formed by label, the hardest class first. Before a group is searched,
    its sentences are scored without the templates, which needs far fewer texts. A class never loses its
    last prompt. The authors tune for each of their datasets, which ``promptboost paper`` does as they
    published it. The defaults are one setting for all.
    Descriptions come from CuPL, as in their scripts; synonyms of classes only if the pool has some.
    """

    name: ClassVar[str] = "proapo"
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    # Weights of the accuracies in the fitness
    top1_weight: float = 0.1
    top5_weight: float = 0.1
    # The same in the search for groups of classes, if they differ
    group_top1_weight: float | None = None
    group_top5_weight: float | None = None
    # Weight of the similarity of classes in the fitness of templates, which the released code adds
    redundancy: float = 0.0
    # Kinds of things, joined by +, for variants of each template: ``type_words=pet+breed``
    type_words: str = ""
    most_templates: int | None = None  # search only so many templates, those of the highest fitness
    weighted: bool = False  # draw templates in proportion to their fitness, not uniformly
    # Begin the search for groups with the best of 34 choices of sentences, not with the names
    sampled_start: bool = False
    # Generations of the search for templates, and for each group of classes
    epochs: int = 8
    group_epochs: int = 4
    top: int = 4  # number of parents, the best candidates so far
    # Children of each parent
    adds: int = 8
    removes: int = 8
    replaces: int = 8
    # Further children. Groups of classes have half as many mutations.
    mutations: int = 8
    crossovers: int = 16
    # Comma-separated description sources. If the pool has no CuPL, the default uses all sentences.
    # A source called ``synonyms`` has further names of the classes.
    sources: str = _USUAL_SOURCE
    # Begin with the classes that gain most from their sentences, and skip the 40 % that gain least
    importance: bool = True
    # Number of loops, and of groups per loop; 0 for templates only
    loops: int = 2
    groups: int = 2
    seed: int = 0  # seed for all draws

    def __post_init__(self) -> None:
        counts = ("epochs", "group_epochs", "adds", "removes", "replaces", "mutations")
        others = ("crossovers", "loops", "groups", "seed")
        check_numbers(self, counts=("top", "most_templates"), from_zero=(*counts, *others))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that the pool has templates, and the sources."""
        if not pool.templates:
            raise PoolError(
                "proapo begins with a search for templates, and the pool has none; build one with "
                "templates: promptboost pool build --help"
            )
        self._sources(pool)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Search for the prompts of each class."""
        self.check(shots, pool, encoder)
        rng = np.random.default_rng(self.seed)
        fitness = Fitness(
            shots.images.rows(encoder),
            shots.labels,
            encoder.logit_scale,
            self.top1_weight,
            self.top5_weight,
            self.redundancy,
        )
        templates = template_variants(pool.templates, self.type_words)
        chosen = choose_templates(templates, shots.class_names, encoder, fitness, self, rng)
        weights = self.group_top1_weight, self.group_top5_weight
        fitness = replace(
            fitness,
            top1_weight=self.top1_weight if weights[0] is None else weights[0],
            top5_weight=self.top5_weight if weights[1] is None else weights[1],
            redundancy=0.0,
        )
        about = _texts(pool, self._sources(pool))
        names = _texts(pool, [s for s in sentence_sources(pool) if _has_names(s)])
        units = ClassUnits(
            [units_of(name, names[name], about[name]) for name in shots.class_names],
            chosen.templates,
            encoder,
        )
        search = ClassSearch(units, fitness, rng, replace(self, mutations=self.mutations // 2))
        start = search.sampled_start() if self.sampled_start else search.names_only()
        state, edited = search.run(start, loops=self.loops, groups=self.groups)
        reached = fitness.of(search.class_rows(state))
        details = {
            "training_fitness": float(reached.fitness[0]),
            "training_accuracy": float(reached.top1[0]) / 100,
            "template_fitness": chosen.fitness,
            "templates": list(chosen.templates),
            "templates_in_library": chosen.in_library,
            "sources": self._sources(pool),
            "groups": [[shots.class_names[k] for k in group] for group in edited],
        }
        banks = tuple(units.bank(k, numbers) for k, numbers in enumerate(state))
        return TextClassifier(self.origin(shots, encoder), banks, details=details)

    def _sources(self, pool: PromptPool) -> list[str]:
        """Return the sources of sentences; all of them if the default is missing."""
        try:
            sources = sentence_sources(pool, self.sources)
        except PoolError:
            if self.sources != _USUAL_SOURCE:
                raise
            sources = sentence_sources(pool)
        return [source for source in sources if not _has_names(source)]


def _has_names(source: str) -> bool:
    return source.lower().rpartition(":")[2].startswith(_SYNONYMS)


def _texts(pool: PromptPool, sources: Sequence[str]) -> dict[str, list[str]]:
    """Return the sentences of each class from some sources."""
    return {
        name: [prompt.text for prompt in prompts if prompt.source in sources]
        for name, prompts in zip(pool.class_names, sentences(pool, ""), strict=True)
    }


def template_variants(templates: Iterable[str], type_words: str) -> list[str]:
    """Return the templates in lower case, and their variants with each type word.

    Examples
    --------
    >>> template_variants(["A photo of a {c}."], "pet")[1:3]
    ['a photo of a {c}, a type of pet.', 'a photo of a pet: {c}.']
    """
    variants: dict[str, None] = {}
    for template in map(str.lower, templates):
        variants[template] = None
        for word in filter(None, type_words.lower().split("+")):
            placeholder = LITERAL if LITERAL in template else "{}"
            variants[template.replace(".", f", a type of {word}.")] = None
            variants[template.replace(f" {placeholder}", f" {word}: {placeholder}")] = None
            variants[template.replace("photo", word)] = None
            variants[template.replace("photo", f"{word} photo")] = None
    return list(variants)


class Chosen(NamedTuple):
    """The templates of the first stage, the fitness of their mean, and the number searched."""

    templates: tuple[str, ...]
    fitness: float
    in_library: int


def choose_templates(
    templates: Sequence[str],
    class_names: Sequence[str],
    encoder: Encoder,
    fitness: Fitness,
    settings: ProAPO,
    rng: np.random.Generator,
) -> Chosen:
    """Search for the templates with the fittest mean, among those not far worse than a plain one."""
    tried = [*templates, plain_template(templates)]
    texts = [fill(template, name).lower() for template in tried for name in class_names]
    rows = embed_distinct(texts, encoder).reshape(len(tried), len(class_names), -1)
    alone = fitness.of(rows)
    worth = alone.fitness[:-1]
    bad = falls_too_far(alone.top1[:-1], float(alone.top1[-1]), len(class_names))
    searched = np.array([worth.argmax()]) if bad.all() else np.flatnonzero(~bad)
    best = np.argsort(-worth[searched], kind="stable")[: settings.most_templates]
    searched = np.sort(searched[best])
    weights = worth[searched] - alone.fitness[-1] + 1 if settings.weighted else None
    flat = rows[searched].reshape(len(searched), -1)

    def score(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        shares = np.zeros((len(candidates), len(flat)), dtype=np.float32)
        for share, candidate in zip(shares, candidates, strict=True):
            share[list(candidate)] = 1.0 / len(candidate)
        return fitness.of((shares @ flat).reshape(len(candidates), *rows.shape[1:])).fitness

    evolution = Evolution(settings, rng, owners=[0] * len(searched), weights=weights)
    first = rng.choice(len(searched), size=min(settings.top, len(searched)), replace=False)
    starts = [frozenset({int(i)}) for i in first]
    fittest, reached = evolution.run(starts, score, settings.epochs)
    chosen = tuple(templates[int(searched[i])] for i in sorted(fittest))
    return Chosen(chosen, reached, in_library=len(searched))

"""ProAPO: an evolutionary search for templates, then for the names and sentences of each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import PoolError
from promptboost.methods.base import FewShotSet, Group, Method, Transfer, check_numbers
from promptboost.methods.fitted import TextClassifier
from promptboost.methods.proapo.class_search import ClassSearch, ClassUnits, units_of
from promptboost.methods.proapo.template_search import (
    Chosen,
    EvolutionEffort,
    Fitness,
    choose_templates,
    library,
)
from promptboost.pool import PromptPool
from promptboost.pool.pool import sentence_sources, sentences

# Sources of this name hold other names of the classes.
_SYNONYMS = "synonym"
_USUAL_SOURCE = "cupl"


@dataclass(frozen=True)
class ProAPO(Method):
    """Sets of prompts that evolve by their fitness on the training images.

    Re-implemented. First templates are searched for that all classes share; then, for a few groups
    of classes, names and sentences to put behind them. Fitness is ``top1_weight`` · top-1 % +
    ``top5_weight`` · top-5 % - 10 · cross-entropy. It alone decides: the released bookkeeping looks
    at test accuracy, this does not.

    It departs from the original in more places. Groups go by label and begin with the hardest
    class. Before a group is searched, its sentences are tried as they stand, unless ``exact`` is
    on: behind all templates they would be many more texts. A class never loses its last prompt. The
    authors tune for each of their datasets; the defaults here are one setting for all: both weights
    0.1 (the default of their code), no words for the type of the classes (their scripts have 2 to
    6), templates drawn alike, names only to begin with, two loops of two groups. Descriptions come
    from CuPL, as in their scripts; other names of the classes only where the pool has some.

    Parameters
    ----------
    top1_weight, top5_weight : float
        What a percent of accuracy is worth.
    epochs, group_epochs : int
        Generations of the search for templates, and for each group of classes.
    top : int
        How many of the best candidates have children.
    adds, removes, replaces : int
        Children of each of them.
    mutations, crossovers : int
        Further children. Groups of classes have half as many mutations.
    max_templates : int or None
        Search among so many templates, those that are fittest alone; None for all that are not
        much worse than “a photo of a {}.”.
    type_words : str
        Words for what all classes are, with commas ("pet,animal"): each makes variants of every
        template.
    weighted : bool
        Draw templates and sentences by what they are worth alone, not all alike.
    sources : str
        Names of description sources, with commas. Where the pool has no CuPL, the default takes
        all sentences. A source called ``synonyms`` holds further names of the classes.
    prompt_sampling : bool
        Begin the second search with the best of 34 states, not with names only. Embeds all
        sentences behind all templates.
    importance : bool
        Edit first what gains by its sentences, and leave the 40 % of the classes alone that do not.
    exact : bool
        Try sentences behind the templates, not as they stand, before a group is searched.
    loops, groups : int
        How often groups are chosen, and how many each time; 0 for templates only.
    seed : int
        For all draws.
    """

    name: ClassVar[str] = "proapo"
    group: ClassVar[Group] = Group.TEXT
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    top1_weight: float = 0.1
    top5_weight: float = 0.1
    epochs: int = 8
    group_epochs: int = 4
    top: int = 4
    adds: int = 8
    removes: int = 8
    replaces: int = 8
    mutations: int = 8
    crossovers: int = 16
    max_templates: int | None = None
    type_words: str = ""
    weighted: bool = False
    sources: str = _USUAL_SOURCE
    prompt_sampling: bool = False
    importance: bool = True
    exact: bool = False
    loops: int = 2
    groups: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("epochs", "group_epochs", "adds", "removes", "replaces", "mutations")
        others = ("crossovers", "loops", "groups", "seed")
        check_numbers(self, counts=("top", "max_templates"), from_zero=(*counts, *others))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that the pool has templates, and the sources."""
        if not pool.templates:
            raise PoolError(
                "proapo begins with a search for templates, and the pool has none; build one with "
                "templates: promptboost pool build --help"
            )
        self._sources(pool)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Search."""
        self.check(shots, pool, encoder)
        rng = np.random.default_rng(self.seed)
        fitness = Fitness(
            shots.images.rows(encoder),
            shots.labels,
            encoder.logit_scale,
            top1_weight=self.top1_weight,
            top5_weight=self.top5_weight,
        )
        words = [word.strip() for word in self.type_words.split(",") if word.strip()]
        chosen = choose_templates(
            library(pool.templates, words),
            shots.class_names,
            encoder,
            fitness,
            epochs=self.epochs,
            effort=self._effort(self.mutations),
            most=self.max_templates,
            weighted=self.weighted,
            rng=rng,
        )
        search = self._search(shots, pool, encoder, chosen, fitness, rng)
        start = search.sampled() if self.prompt_sampling else search.names_only()
        state, edited = search.run(start, loops=self.loops, groups=self.groups)
        reached = fitness.of(search.class_rows(state))
        details: dict[str, Any] = {
            "training_fitness": float(reached.fitness[0]),
            "training_accuracy": float(reached.top1[0]) / 100,
            "template_fitness": chosen.fitness,
            "templates": list(chosen.templates),
            "templates_in_library": chosen.in_library,
            "sources": self._sources(pool),
            "groups": [[shots.class_names[k] for k in group] for group in edited],
            "sets_scored": fitness.measured,
            "texts_embedded": search.units.texts_embedded,
        }
        banks = tuple(search.units.bank(k, chosen) for k, chosen in enumerate(state))
        return TextClassifier(self.origin(shots, encoder), banks, details=details)

    def _effort(self, mutations: int) -> EvolutionEffort:
        of_each = self.adds, self.removes, self.replaces
        return EvolutionEffort(self.top, *of_each, mutations, self.crossovers)

    def _search(
        self,
        shots: FewShotSet,
        pool: PromptPool,
        encoder: Encoder,
        chosen: Chosen,
        fitness: Fitness,
        rng: np.random.Generator,
    ) -> ClassSearch:
        about = _texts(pool, self._sources(pool))
        names = _texts(pool, [s for s in sentence_sources(pool) if _has_names(s)])
        units = [units_of(name, names[name], about[name]) for name in shots.class_names]
        return ClassSearch(
            ClassUnits(units, chosen.templates, encoder),
            fitness,
            rng,
            effort=self._effort(self.mutations // 2),
            epochs=self.group_epochs,
            weighted=self.weighted,
            importance=self.importance,
            exact=self.exact,
        )

    def _sources(self, pool: PromptPool) -> list[str]:
        """Name the sources to take sentences from; all, if they are the usual and not there."""
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
    """Return the sentences of each class that come from some sources."""
    return {
        name: [prompt.text for prompt in prompts if prompt.source in sources]
        for name, prompts in zip(pool.class_names, sentences(pool, ""), strict=True)
    }

"""SentenceScores: cosines of images and sentences, cached to measure edits of the text at once."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.embedder import TextSource, embed_texts
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.head import Head

#: Cached class scores beyond one for each class, within so many bytes.
_CACHED, _CACHED_BYTES = 256, 2**27
#: Texts whose predictions are cached: an edit is compared with its original.
_TEXTS = 8
#: Sentences that are scored one by one.
_FEW = 4
#: Images whose residual is computed at once, in double precision.
_BLOCK = 4096

K = TypeVar("K")
V = TypeVar("V")


class ClassKey(NamedTuple):
    """The values that determine the logit of a class."""

    weights: tuple[tuple[str, float], ...]  # of its sentences
    original: str | None  # its name in the residual
    added: str | None  # its own name, if it is not in the residual
    lead: float | None  # the bias correction of a class without training images


@dataclass(frozen=True, eq=False)
class _Ranking:
    """The best class of each image by a text, and its logit."""

    keys: tuple[ClassKey, ...]
    best: NDArray[np.float64]
    chosen: NDArray[np.intp]


@dataclass(eq=False)
class SentenceScores:
    """The cosines of images with sentences.

    The score of a class is an average of such columns. So an edit costs the columns of the classes it
    changes, and only new sentences are embedded.
    """

    embeddings: NDArray[np.float32]  # rows of length one, (n, D)
    source: TextSource  # embeds sentences in the same space
    head: Head  # before any edit: edits keep its residual and its factors

    def __post_init__(self) -> None:
        self.embeddings = np.ascontiguousarray(self.embeddings, dtype=np.float32)
        self._columns: dict[str, NDArray[np.float32]] = {}
        self._central: dict[str, float] = {}
        self._classes: OrderedDict[tuple[tuple[str, float], ...], NDArray[np.float64]]
        self._classes = OrderedDict()
        self._rankings: OrderedDict[tuple[ClassKey, ...], _Ranking] = OrderedDict()

    @property
    def factor(self) -> float:
        """The factor that turns mean cosines into logits."""
        return self.head.factor

    def read(self, texts: Sequence[str]) -> None:
        """Compute the columns of all new sentences at once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._columns]
        if not new:
            return
        rows = embed_texts(self.source, new).astype(np.float32)
        if self.head.balance is not None:
            self._central.update(zip(new, (rows @ self.head.balance.center).tolist(), strict=True))
        if len(new) <= _FEW:  # a product with one row reads the images once, and rearranges nothing
            columns = [self.embeddings @ row for row in rows]
        else:
            columns = list(np.ascontiguousarray(rows @ self.embeddings.T))
        self._columns.update(zip(new, columns, strict=True))

    def column(self, text: str) -> NDArray[np.float32]:
        """Return the cosine of each image with a sentence."""
        self.read([text])
        return self._columns[text]

    def class_score(
        self, weights: Mapping[str, float], images: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Return each image's mean cosine with the sentences of a class, by their weights.

        For a part of the images, the same numbers are computed for those only.
        """
        key = tuple(weights.items())
        if key not in self._classes:
            if images is not None:
                return self.mean_score(weights, images)
            room = max(16, _CACHED_BYTES // (8 * max(1, len(self.embeddings))))
            room = min(len(self.head.class_names) + _CACHED, room)
            _cache(self._classes, key, self.mean_score(weights), room)
        self._classes.move_to_end(key)
        return self._classes[key] if images is None else self._classes[key][images]

    def mean_score(
        self, weights: Mapping[str, float], images: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Return the same as :meth:`class_score`, and cache only the columns."""
        self.read(list(weights))
        total = np.zeros(len(self.embeddings) if images is None else len(images))
        for text, weight in weights.items():
            column = self._columns[text]
            total += weight * (column if images is None else column[images])
        return total

    def residual_logits(self, class_name: str) -> NDArray[np.float64]:
        """Return the contribution of the residual to the logit of a class; zero for a class without one."""
        names, residual = self.head.class_names, self.head.residual
        if residual is None or class_name not in names:
            return np.zeros(len(self.embeddings))
        row: NDArray[np.float64] = self._residual_logits[names.index(class_name)]
        return row

    @cached_property
    def _residual_logits(self) -> NDArray[np.float64]:
        """The contribution of the residual to the logit of each of its classes, (K, n)."""
        residual = np.asarray(self.head.residual, dtype=np.float64)
        logits = np.empty((len(residual), len(self.embeddings)))
        for start in range(0, len(self.embeddings), _BLOCK):
            block = slice(start, start + _BLOCK)
            logits[:, block] = residual @ self.embeddings[block].astype(np.float64).T
        return logits

    def logits(
        self, ensemble: PromptEnsemble, originals: Mapping[str, str] | None = None
    ) -> NDArray[np.float64]:
        """Return the logits of a text on the images, (n, K): that of the fit, or an edited one.

        `originals` maps the names of classes to those in the fit, where they were renamed: the residual
        has those.
        """
        keys = self.class_keys(ensemble, originals)
        logits = np.empty((len(keys), len(self.embeddings)))
        for row, key in zip(logits, keys, strict=True):
            row[:] = self._logit(key)
        return logits.T

    def answers(
        self, ensemble: PromptEnsemble, originals: Mapping[str, str] | None = None
    ) -> NDArray[np.intp]:
        """Return the number of each image's best class: exactly the argmax of :meth:`logits`.

        Only classes that differ from those of the most similar cached text are compared.
        """
        keys = self.class_keys(ensemble, originals)
        ranking = self._rankings.get(keys)
        if ranking is None:
            unchanged = set(keys)
            nearest = max(
                self._rankings.values(),
                key=lambda ranking: sum(key in unchanged for key in ranking.keys),
                default=None,
            )
            ranking = None if nearest is None else self._updated(nearest, keys)
            ranking = ranking or _Ranking(keys, *self._best(keys, range(len(keys))))
            _cache(self._rankings, keys, ranking, _TEXTS)
        self._rankings.move_to_end(keys)
        return ranking.chosen

    def two_best(
        self,
        ensemble: PromptEnsemble,
        originals: Mapping[str, str] | None = None,
        without: NDArray[np.integer] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.float64], NDArray[np.intp]]:
        """Return each image's best logit and its class, then the same of the other classes.

        `without` has a class of each image that is left out.
        """
        keys = self.class_keys(ensemble, originals)
        number = len(self.embeddings)
        best, second = np.full(number, -np.inf), np.full(number, -np.inf)
        chosen, runner_up = np.zeros(number, dtype=np.intp), np.zeros(number, dtype=np.intp)
        for position, key in enumerate(keys):
            row = self._logit(key)
            if without is not None:
                row = np.where(without == position, -np.inf, row)
            ahead = row > best
            behind = ~ahead & (row > second)
            np.copyto(second, best, where=ahead)
            np.copyto(runner_up, chosen, where=ahead)
            np.copyto(best, row, where=ahead)
            np.copyto(chosen, position, where=ahead)
            np.copyto(second, row, where=behind)
            np.copyto(runner_up, position, where=behind)
        return best, chosen, second, runner_up

    def margins(
        self,
        ensemble: PromptEnsemble,
        labels: NDArray[np.integer],
        originals: Mapping[str, str] | None = None,
    ) -> NDArray[np.float64]:
        """Return the logit of each image's label minus the best other logit; 0 where a label is −1."""
        keys, label_logits = self.class_keys(ensemble, originals), np.zeros(len(labels))
        for position in np.unique(labels[labels >= 0]).tolist():
            images = np.flatnonzero(labels == position)
            label_logits[images] = self._logit(keys[position], images)
        best, *_ = self.two_best(ensemble, originals, labels)
        return np.where(labels >= 0, label_logits - best, 0.0)

    def class_keys(
        self, ensemble: PromptEnsemble, originals: Mapping[str, str] | None = None
    ) -> tuple[ClassKey, ...]:
        """Return what the score of each class depends on; texts with equal keys predict the same."""
        self.read(ensemble.texts())
        fit_names = {name: name for name in ensemble.class_names}
        fit_names = fit_names if originals is None else dict(originals)
        leads = self._missing(ensemble, fit_names)
        return tuple(
            ClassKey(
                tuple(ensemble.prompts(name).items()),
                fit_names.get(name),
                None if name in fit_names else name,
                leads.get(position),
            )
            for position, name in enumerate(ensemble.class_names)
        )

    def _logit(self, key: ClassKey, images: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Return the logit of a class, of all images or of some."""
        logit = self.class_score(dict(key.weights), images) * self.factor
        if key.original is not None and self.head.residual is not None:
            residual = self.residual_logits(key.original)
            logit += residual if images is None else residual[images]
        if key.lead is not None:
            towards = self._towards_center
            logit += (self.factor * key.lead) * (towards if images is None else towards[images])
        return logit

    def _best(
        self,
        keys: Sequence[ClassKey],
        positions: Iterable[int],
        images: NDArray[np.intp] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the best logit of some classes, and its class; of equals the first class wins."""
        number = len(self.embeddings) if images is None else len(images)
        best, chosen = np.full(number, -np.inf), np.zeros(number, dtype=np.intp)
        for position in positions:
            row = self._logit(keys[position], images)
            ahead = row > best
            np.copyto(best, row, where=ahead)
            np.copyto(chosen, position, where=ahead)
        return best, chosen

    def _updated(self, ranking: _Ranking, keys: tuple[ClassKey, ...]) -> _Ranking | None:
        """Update a ranking to another text; None if too few classes are the same."""
        positions = {key: position for position, key in enumerate(keys)}
        moved = np.array([positions.get(key, -1) for key in ranking.keys], dtype=np.intp)
        stay = moved[moved >= 0]
        if 2 * len(stay) < len(keys) or (np.diff(stay) < 0).any():
            return None
        best, chosen = ranking.best.copy(), moved[ranking.chosen]
        lost = np.flatnonzero(chosen < 0)  # their class was removed, or has another score
        best[lost], chosen[lost] = self._best(keys, stay.tolist(), lost)
        for position in sorted(set(range(len(keys))) - set(stay.tolist())):
            row = self._logit(keys[position])
            ahead = (row > best) | ((row == best) & (position < chosen))
            np.copyto(best, row, where=ahead)
            np.copyto(chosen, position, where=ahead)
        return _Ranking(keys, best, chosen)

    def _missing(self, ensemble: PromptEnsemble, fit_names: Mapping[str, str]) -> dict[int, float]:
        """Return the bias corrections of classes without training images: see the balance of a head."""
        balance, names = self.head.balance, ensemble.class_names
        if balance is None:
            return {}
        learned = np.array([fit_names.get(name) in balance.class_names for name in names])
        if learned.all() or not learned.any():
            return {}
        scores = []
        for name in names:
            score = sum(w * self._central[text] for text, w in ensemble.prompts(name).items())
            known, residual = self.head.class_names, self.head.residual
            if residual is not None and fit_names.get(name) in known:
                row = residual[known.index(fit_names[name])].astype(np.float64)
                score += float(row @ balance.center) / self.factor
            scores.append(score)
        others = float(np.mean(np.array(scores)[learned]))
        lift = balance.text_lift if self.head.residual is None else balance.lift
        return {k: others + lift - scores[k] for k in np.flatnonzero(~learned).tolist()}

    @cached_property
    def _towards_center(self) -> NDArray[np.float64]:
        balance = self.head.balance
        assert balance is not None
        towards: NDArray[np.float64]
        towards = self.embeddings @ (balance.center / (balance.center @ balance.center))
        return towards


def _cache(cache: OrderedDict[K, V], key: K, value: V, room: int) -> None:
    """Add an entry to a cache; drop the least recently used ones beyond `room`."""
    cache[key] = value
    while len(cache) > room:
        cache.popitem(last=False)

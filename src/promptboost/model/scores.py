"""SentenceScores: what images score on sentences, kept so that an edit of the text is measured at once."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.embedder import TextSource, embed_texts
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.head import Head

#: Class scores that are kept, beyond one for each class; of many images fewer, within so many bytes.
_KEPT, _KEPT_BYTES = 256, 2**27
#: Texts whose answers are kept: an edit is compared with what it came from.
_TEXTS = 8
#: Sentences that are scored one by one.
_FEW = 4
#: Images whose residual is worked out at once, in double precision.
_BLOCK = 4096

_Asked = tuple[int, tuple[tuple[str, str], ...] | None]


class ClassKey(NamedTuple):
    """What the logit of a class depends on."""

    weights: tuple[tuple[str, float], ...]  # of its sentences
    original: str | None  # its name in the residual
    added: str | None  # its own name, where the residual does not know it
    lead: float | None  # by which the balance moves a class that was added by words alone


@dataclass(frozen=True, eq=False)
class _Standing:
    """The best class of each image by one text, and its logit."""

    keys: tuple[ClassKey, ...]
    best: NDArray[np.float64]
    chosen: NDArray[np.intp]


@dataclass(eq=False)
class SentenceScores:
    """The cosine of each image with each sentence that was asked about.

    The score of a class is an average of such columns. So an edit costs the columns of the classes it
    changes, and only a sentence that is new is embedded.

    Parameters
    ----------
    embeddings : array of shape (n, D)
        One row of length one for each image.
    source : Encoder, Embedder, mapping or callable
        What embeds sentences, in the same space.
    head : Head
        What answers before any edit: its residual and its factors are kept by edits.

    Examples
    --------
    >>> from promptboost.model import PromptEnsemble, Round
    >>> vectors = {"a cat": [1.0, 0.0], "a dog": [0.0, 1.0], "a pet": [0.6, 0.8]}
    >>> banks = {"cat": {"a cat": 1, "a pet": 1}, "dog": {"a dog": 1}}
    >>> ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.0, 0.0),), logit_scale=10.0)
    >>> images = np.array([[0.6, 0.8], [1.0, 0.0]])
    >>> scores = SentenceScores(images, vectors, ensemble.embed(vectors))
    >>> scores.logits(ensemble).round(4)
    array([[8., 8.],
           [8., 0.]])
    >>> scores.logits(ensemble.remove("a pet")).round(4)
    array([[ 6.,  8.],
           [10.,  0.]])
    """

    embeddings: NDArray[np.float32]
    source: TextSource
    head: Head
    _columns: dict[str, NDArray[np.float32]] = field(default_factory=dict, init=False, repr=False)
    _classes: "OrderedDict[tuple[tuple[str, float], ...], NDArray[np.float64]]" = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    _rest: NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _central: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _towards: NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _standings: "OrderedDict[tuple[ClassKey, ...], _Standing]" = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    _known: "OrderedDict[_Asked, tuple[PromptEnsemble, tuple[ClassKey, ...]]]" = field(
        default_factory=OrderedDict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        self.embeddings = np.ascontiguousarray(self.embeddings, dtype=np.float32)

    @property
    def factor(self) -> float:
        """What mean cosines are multiplied by to become logits."""
        return self.head.factor

    def read(self, texts: Sequence[str]) -> None:
        """Score the images on sentences, those that are new in one go."""
        new = [text for text in dict.fromkeys(texts) if text not in self._columns]
        if not new:
            return
        rows = embed_texts(self.source, new).astype(np.float32)
        if self.head.balance is not None:
            self._central.update(zip(new, (rows @ self.head.balance.centre).tolist(), strict=True))
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

        Of some images alone it is the same numbers, and only those are worked out.
        """
        key = tuple(weights.items())
        if key in self._classes:
            self._classes.move_to_end(key)
            return self._classes[key] if images is None else self._classes[key][images]
        total = self.mean_score(weights, images)
        if images is None:
            self._classes[key] = total
            room = max(16, _KEPT_BYTES // (8 * max(1, len(total))))
            while len(self._classes) > min(len(self.head.class_names) + _KEPT, room):
                self._classes.popitem(last=False)
        return total

    def mean_score(
        self, weights: Mapping[str, float], images: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Return the same as :meth:`class_score`, and keep nothing but the columns."""
        self.read(list(weights))
        total = np.zeros(len(self.embeddings) if images is None else len(images))
        for text, weight in weights.items():
            column = self._columns[text]
            total += weight * (column if images is None else column[images])
        return total

    def rest(self, class_name: str) -> NDArray[np.float64]:
        """Return what the residual adds to the logit of a class; zero for a class that is new to it."""
        names = self.head.class_names
        if self._rest is None:
            self._rest = self._all_rest()
        place = (
            names.index(class_name)
            if class_name in names and self.head.residual is not None
            else -1
        )
        found: NDArray[np.float64] = self._rest[place]
        return found

    def _all_rest(self) -> NDArray[np.float64]:
        """Work out what the residual adds, for each class; the last row is that of a class without one."""
        number = 0 if self.head.residual is None else len(self.head.class_names)
        rest = np.zeros((number + 1, len(self.embeddings)))
        if number:
            rows = np.asarray(self.head.residual, dtype=np.float64)
            for start in range(0, len(self.embeddings), _BLOCK):
                part = slice(start, start + _BLOCK)
                rest[:-1, part] = rows @ self.embeddings[part].astype(np.float64).T
        return rest

    def _residual(self, class_name: str) -> NDArray[np.float32] | None:
        names, residual = self.head.class_names, self.head.residual
        if residual is None or class_name not in names:
            return None
        return np.asarray(residual[names.index(class_name)])

    def logits(
        self, ensemble: PromptEnsemble, originals: Mapping[str, str] | None = None
    ) -> NDArray[np.float64]:
        """Return the logits of a text on the images, (n, K): that of the fit, or an edited one.

        `originals` are the names that classes had in the fit, where they were renamed since: the residual
        is known by those.
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

        Only classes that differ from those of a text asked about before are compared anew.
        """
        keys = self.class_keys(ensemble, originals)
        standing = self._standings.get(keys)
        if standing is None:
            known = set(keys)
            nearest = max(
                self._standings.values(),
                key=lambda one: sum(key in known for key in one.keys),
                default=None,
            )
            standing = None if nearest is None else self._after(nearest, keys)
            standing = standing or _Standing(keys, *self._best(keys, range(len(keys))))
            self._standings[keys] = standing
        self._standings.move_to_end(keys)
        while len(self._standings) > _TEXTS:
            self._standings.popitem(last=False)
        return standing.chosen

    def two_best(
        self, ensemble: PromptEnsemble, originals: Mapping[str, str] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.float64], NDArray[np.intp]]:
        """Return each image's best logit and its class, then the same of the other classes."""
        keys = self.class_keys(ensemble, originals)
        number = len(self.embeddings)
        best, second = np.full(number, -np.inf), np.full(number, -np.inf)
        chosen, next_one = np.zeros(number, dtype=np.intp), np.zeros(number, dtype=np.intp)
        for place, key in enumerate(keys):
            row = self._logit(key)
            ahead = row > best
            behind = ~ahead & (row > second)
            np.copyto(second, best, where=ahead)
            np.copyto(next_one, chosen, where=ahead)
            np.copyto(best, row, where=ahead)
            np.copyto(chosen, place, where=ahead)
            np.copyto(second, row, where=behind)
            np.copyto(next_one, place, where=behind)
        return best, chosen, second, next_one

    def class_keys(
        self, ensemble: PromptEnsemble, originals: Mapping[str, str] | None = None
    ) -> tuple[ClassKey, ...]:
        """Return what the score of each class depends on; texts with the same keys answer the same."""
        # The text is kept along with its number, so that no other can have it.
        asked = id(ensemble), None if originals is None else tuple(originals.items())
        if asked not in self._known:
            self.read(ensemble.texts())
            known = (
                {name: name for name in ensemble.class_names} if originals is None else originals
            )
            leads = self._missing(ensemble, known)
            keys = tuple(
                ClassKey(
                    tuple(ensemble.prompts(name).items()),
                    known.get(name),
                    None if name in known else name,
                    leads.get(place),
                )
                for place, name in enumerate(ensemble.class_names)
            )
            self._known[asked] = ensemble, keys
            while len(self._known) > _TEXTS:
                self._known.popitem(last=False)
        self._known.move_to_end(asked)
        return self._known[asked][1]

    def _logit(self, key: ClassKey, images: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Return the logit of a class, of all images or of some."""
        logit = self.class_score(dict(key.weights), images) * self.factor
        if key.original is not None and self.head.residual is not None:
            rest = self.rest(key.original)
            logit += rest if images is None else rest[images]
        if key.lead is not None:
            towards = self._towards_centre()
            logit += (self.factor * key.lead) * (towards if images is None else towards[images])
        return logit

    def _best(
        self,
        keys: Sequence[ClassKey],
        places: Iterable[int],
        images: NDArray[np.intp] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the best logit of some classes, and whose it is; of equals the first class wins."""
        number = len(self.embeddings) if images is None else len(images)
        best, chosen = np.full(number, -np.inf), np.zeros(number, dtype=np.intp)
        for place in places:
            row = self._logit(keys[place], images)
            ahead = row > best
            np.copyto(best, row, where=ahead)
            np.copyto(chosen, place, where=ahead)
        return best, chosen

    def _after(self, before: _Standing, keys: tuple[ClassKey, ...]) -> _Standing | None:
        """Return the standing by another text; None where too little stays the same."""
        places = {key: place for place, key in enumerate(keys)}
        moved = np.array([places.get(key, -1) for key in before.keys], dtype=np.intp)
        stay = moved[moved >= 0]
        if 2 * len(stay) < len(keys) or (np.diff(stay) < 0).any():
            return None
        best, chosen = before.best.copy(), moved[before.chosen]
        lost = np.flatnonzero(chosen < 0)  # their class is gone, or has another score
        best[lost], chosen[lost] = self._best(keys, stay.tolist(), lost)
        for place in sorted(set(range(len(keys))) - set(stay.tolist())):
            row = self._logit(keys[place])
            ahead = (row > best) | ((row == best) & (place < chosen))
            np.copyto(best, row, where=ahead)
            np.copyto(chosen, place, where=ahead)
        return _Standing(keys, best, chosen)

    def _missing(self, ensemble: PromptEnsemble, known: Mapping[str, str]) -> dict[int, float]:
        """Return how far classes that were added by words alone are moved: see the balance of a head."""
        balance, names = self.head.balance, ensemble.class_names
        if balance is None:
            return {}
        learnt = [known.get(name) in balance.class_names for name in names]
        if all(learnt) or not any(learnt):
            return {}
        scores = []
        for name in names:
            score = sum(w * self._central[text] for text, w in ensemble.prompts(name).items())
            row = self._residual(known[name]) if name in known else None
            if row is not None:
                score += float(row.astype(np.float64) @ balance.centre) / self.factor
            scores.append(score)
        others = float(np.mean([score for score, one in zip(scores, learnt, strict=True) if one]))
        lift = balance.text_lift if self.head.residual is None else balance.lift
        return {k: others + lift - scores[k] for k, one in enumerate(learnt) if not one}

    def _towards_centre(self) -> NDArray[np.float64]:
        balance = self.head.balance
        assert balance is not None
        if self._towards is None:
            self._towards = self.embeddings @ (balance.centre / (balance.centre @ balance.centre))
        return self._towards

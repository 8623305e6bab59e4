"""SentenceScores: what images score on sentences, kept so that an edit of the text is measured at once."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.encoders.embedder import TextSource, embed_texts
from promptboost.errors import LabelError, SettingError
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.head import LinearHead
from promptboost.model.votes import VotingHead

#: Class scores that are kept, beyond one for each class.
_KEPT = 256


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
    head : LinearHead
        What answers before any edit: its residual and its factors are kept by edits.

    Examples
    --------
    >>> from promptboost.model import PromptEnsemble, Round
    >>> vectors = {"a cat": [1.0, 0.0], "a dog": [0.0, 1.0], "a pet": [0.6, 0.8]}
    >>> banks = {"cat": {"a cat": 1, "a pet": 1}, "dog": {"a dog": 1}}
    >>> ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.0, 0.0),), logit_scale=10.0)
    >>> images = np.array([[0.6, 0.8], [1.0, 0.0]])
    >>> scores = SentenceScores(images, vectors, ensemble.embed_texts(vectors))
    >>> scores.logits(ensemble).round(4)
    array([[8., 8.],
           [8., 0.]])
    >>> scores.logits(ensemble.remove("a pet")).round(4)
    array([[ 6.,  8.],
           [10.,  0.]])
    """

    embeddings: NDArray[np.float32]
    source: TextSource
    head: LinearHead
    _columns: dict[str, NDArray[np.float32]] = field(default_factory=dict, init=False, repr=False)
    _classes: "OrderedDict[tuple[tuple[str, float], ...], NDArray[np.float64]]" = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    _rest: dict[str, NDArray[np.float64]] = field(default_factory=dict, init=False, repr=False)
    _central: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.embeddings = np.ascontiguousarray(self.embeddings, dtype=np.float32)
        check_additive(self.head)

    @property
    def factor(self) -> float:
        """What mean cosines are multiplied by to become logits."""
        return logit_factor(self.head)

    def read(self, texts: Sequence[str]) -> None:
        """Score the images on sentences, those that are new in one go."""
        new = [text for text in dict.fromkeys(texts) if text not in self._columns]
        if not new:
            return
        rows = embed_texts(self.source, new).astype(np.float32)
        if self.head.balance is not None:
            self._central.update(zip(new, (rows @ self.head.balance.centre).tolist(), strict=True))
        self._columns.update(zip(new, np.ascontiguousarray(rows @ self.embeddings.T), strict=True))

    def column(self, text: str) -> NDArray[np.float32]:
        """Return the cosine of each image with a sentence."""
        self.read([text])
        return self._columns[text]

    def class_score(self, weights: Mapping[str, float]) -> NDArray[np.float64]:
        """Return each image's mean cosine with the sentences of a class, by their weights."""
        key = tuple(weights.items())
        if key in self._classes:
            self._classes.move_to_end(key)
            return self._classes[key]
        self.read(list(weights))
        total = np.zeros(len(self.embeddings))
        for text, weight in weights.items():
            total += weight * self._columns[text]
        self._classes[key] = total
        while len(self._classes) > len(self.head.class_names) + _KEPT:
            self._classes.popitem(last=False)
        return total

    def rest(self, class_name: str) -> NDArray[np.float64]:
        """Return what the residual adds to the logit of a class; zero for a class that is new to it."""
        if class_name not in self._rest:
            row = self._residual(class_name)
            self._rest[class_name] = (
                np.zeros(len(self.embeddings)) if row is None else self.embeddings @ as_double(row)
            )
        return self._rest[class_name]

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
        if ensemble.algorithm != "samme.r":
            raise SettingError("the rounds vote for classes here, and have no logits to add up")
        self.read(ensemble.texts())
        known = {name: name for name in ensemble.class_names} if originals is None else originals
        logits = np.empty((len(ensemble.class_names), len(self.embeddings)))
        for row, name in zip(logits, ensemble.class_names, strict=True):
            np.multiply(self.class_score(ensemble.prompts(name)), self.factor, out=row)
            if name in known:
                row += self.rest(known[name])
        for place, lead in self._missing(ensemble, known).items():
            logits[place] += (self.factor * lead) * self._towards_centre()
        return logits.T

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
                score += float(as_double(row) @ balance.centre) / self.factor
            scores.append(score)
        others = float(np.mean([score for score, one in zip(scores, learnt, strict=True) if one]))
        lift = balance.text_lift if self.head.residual is None else balance.lift
        return {k: others + lift - scores[k] for k, one in enumerate(learnt) if not one}

    def _towards_centre(self) -> NDArray[np.float64]:
        balance = self.head.balance
        assert balance is not None
        if "" not in self._rest:
            centre = balance.centre / (balance.centre @ balance.centre)
            self._rest[""] = self.embeddings @ centre
        return self._rest[""]


def check_additive(head: object) -> None:
    """Raise if the rounds of a head vote, so that no sentence has a part in the answer of its own."""
    if isinstance(head, VotingHead) or not isinstance(head, LinearHead):
        raise SettingError(
            "the rounds of this run vote for classes (algorithm samme): its sentences have no parts that "
            "add up; fit with algorithm samme.r, the default, to explain answers"
        )


def logit_factor(head: LinearHead) -> float:
    """Return what the mean cosines of a head are multiplied by to become logits."""
    factor = head.logit_scale if head.residual is None else head.text_scale
    return head.rounds / head.temperature if factor is None else factor


def rest_rows(head: LinearHead) -> NDArray[np.float64]:
    """Return what a head adds to the logits beside its words, (K, D)."""
    beside = as_double(head.matrix) - as_double(head.weights)
    return beside * (logit_factor(head) / head.rounds)


def class_place(class_names: Sequence[str], name: str) -> int:
    """Return the number of a class; raise if there is none of that name."""
    if name not in class_names:
        raise LabelError(
            f"there is no class {name!r}; there are {', '.join(map(repr, class_names[:10]))}"
            f"{', …' if len(class_names) > 10 else ''}"
        )
    return list(class_names).index(name)


def best_of_others(
    logits: NDArray[np.floating], place: int
) -> tuple[NDArray[np.floating], NDArray[np.intp]]:
    """Return the largest logit of all classes but one, and which class has it."""
    others = np.array(logits)
    others[:, place] = -np.inf
    best = others.argmax(axis=1)
    return others[np.arange(len(others)), best], best


def as_double(rows: ArrayLike) -> NDArray[np.float64]:
    """Return rows in double precision."""
    return np.asarray(rows, dtype=np.float64)

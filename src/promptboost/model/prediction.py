"""Prediction, the record of one image that every output writes, and Explanation, its sentences."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import ArrayLike, NDArray

from promptboost.errors import LabelError, SettingError, percent
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.head import Head

#: Fields that every record has, in the order of columns.
FIELDS = ("image", "predicted", "probability", "unsure", "top", "error")
#: The field that each rule of decision adds.
RULE_FIELDS = {"accept": "rejected", "coverage": "prediction_set", "class_priors": "unadjusted"}


class ClassProbability(msgspec.Struct, frozen=True):
    """A class and its probability."""

    class_name: str = msgspec.field(name="class")
    probability: float


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one image.

    Tables, CSV, JSON, Parquet and HTTP all write these fields under these names. Fields that are unset are
    not written; `None` is written as null.

    Attributes
    ----------
    image : str
        The name of the image, usually its path.
    predicted : str or None
        The predicted class; None if the answer is unsure or rejected, or the image cannot be read.
    probability : float or None
        The probability of the most probable class.
    unsure : bool
        Whether that probability is below the required minimum.
    rejected : bool, optional
        Whether the largest logit is below the rejection threshold: the image probably shows none of the
        classes. `predicted` is None then.
    prediction_set : tuple of str, optional
        The smallest set of classes with the required coverage, best first.
    unadjusted : str, optional
        The predicted class before adjustment to class priors.
    top : tuple of ClassProbability
        The most probable classes, best first. An unsure prediction has them too.
    error : str or None
        Why the image cannot be read.
    label : str, optional
        The true class, where it is known.
    zero_shot : str, optional
        The class predicted by a zero-shot classifier with the same encoder.
    text_share : float, optional
        The text's share of the margin between the two most probable classes, from 0 to 1; the residual
        has the remainder.
    explanation : dict, optional
        What each sentence contributes to the margin.

    Examples
    --------
    >>> prediction = Prediction.of("a.png", ["cat", "dog"], [0.25, 0.75])
    >>> prediction.predicted, prediction.probability
    ('dog', 0.75)
    >>> print(prediction.to_json())
    {"image": "a.png", "predicted": "dog", "probability": 0.75, "unsure": false, "top": [{"class": "dog", \
"probability": 0.75}], "error": null}
    """

    image: str
    predicted: str | None = None
    probability: float | None = None
    unsure: bool = False
    top: tuple[ClassProbability, ...] = ()
    error: str | None = None
    rejected: bool | UnsetType = UNSET
    prediction_set: tuple[str, ...] | UnsetType = UNSET
    unadjusted: str | UnsetType = UNSET
    label: str | UnsetType | None = UNSET
    zero_shot: str | UnsetType | None = UNSET
    text_share: float | UnsetType = UNSET
    explanation: dict[str, Any] | UnsetType = UNSET

    @classmethod
    def of(
        cls,
        image: str,
        class_names: Sequence[str],
        probabilities: ArrayLike,
        top_k: int = 1,
        min_probability: float = 0.0,
        *,
        best: int | None = None,
        least: float | None = None,
        **fields: Any,
    ) -> "Prediction":
        """Make the record of an image from its probabilities.

        Parameters
        ----------
        image : str
        class_names : sequence of str
        probabilities : array-like of shape (K,)
        top_k : int, default=1
            Number of classes in `top`.
        min_probability : float, default=0
            Below it the prediction is unsure.
        best : int, optional
            Index of the predicted class; by default the first with the largest probability.
        least : float, optional
            The set of classes has the first class, and all with this probability.
        **fields
            Other fields of the record.
        """
        chances = np.asarray(probabilities, dtype=np.float64)
        order = np.argsort(-chances, kind="stable").tolist()
        if best is not None and best != order[0]:  # probabilities that round to the same number
            order = [best, *(k for k in order if k != best)]
        top = tuple(ClassProbability(class_names[k], float(chances[k])) for k in order[:top_k])
        unsure = top[0].probability < min_probability
        if least is not None:
            size = max(1, int((chances >= least).sum()))
            fields["prediction_set"] = tuple(class_names[k] for k in order[:size])
        return cls(
            image=image,
            predicted=None if unsure or fields.get("rejected") is True else top[0].class_name,
            probability=top[0].probability,
            unsure=unsure,
            top=top,
            **fields,
        )

    @property
    def changed(self) -> bool:
        """Whether class priors changed the most probable class."""
        return bool(self.top) and self.unadjusted not in (UNSET, self.top[0].class_name)

    def record(self) -> dict[str, Any]:
        """Return a JSON-serializable dict."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in record.items()}

    def to_json(self) -> str:
        """Return one line of ASCII JSON, with control characters escaped."""
        return json.dumps(self.record(), allow_nan=False).replace("\x7f", "\\u007f")

    def labels(self) -> list[dict[str, Any]]:
        """Return `top` as ``[{"label", "score"}, …]``, as Hugging Face's pipelines do."""
        return [{"label": best.class_name, "score": best.probability} for best in self.top]

    def cells(self, columns: Sequence[str]) -> list[str]:
        """Return the values of CSV columns: fields, or ``class_2`` and ``probability_2`` of `top`."""
        values = self.record()
        for k, choice in enumerate(values["top"], start=1):
            values |= {f"{name}_{k}": value for name, value in choice.items()}
        return [_cell(values.get(name)) for name in columns]


def csv_columns(top_k: int = 1, *, abstain: bool = False, further: Sequence[str] = ()) -> list[str]:
    """Return the CSV columns of predictions; without `abstain`, `predicted` is the first of `top`.

    `further` fields come after the others.
    """
    numbers = range(1, top_k + 1) if top_k > 1 or abstain else ()
    top = [f"{name}_{k}" for k in numbers for name in ("class", "probability")]
    return [*(name for name in FIELDS if name != "top"), *top, *further]


def csv_text(predictions: Iterable[Prediction], columns: Sequence[str]) -> str:
    """Return predictions as the text of a CSV file."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(prediction.cells(columns) for prediction in predictions)
    return text.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, list):
        return "|".join(value)
    return "" if value is None else str(value)


#: Sentences that are removed at most until a prediction changes.
_REMOVALS = 5
#: Terms shown by default, the residual included.
TERMS = 6


class Contribution(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contribution of a sentence to the margin of one class over another."""

    class_name: str = msgspec.field(name="class")
    prompt: str  # empty for the sum of several sentences
    value: float  # positive for the answer, negative for the other class
    cosine: float  # of image and sentence
    weight: float  # the sentence's share in the score of its class
    count: int = 1  # of sentences that are summed up

    def __str__(self) -> str:
        return self.prompt or f"{self.count} more"


class EvidenceGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Evidence of one kind: the sentences of one of the two classes, or the residual."""

    title: str
    value: float
    contributions: tuple[Contribution, ...] = ()
    note: str = ""

    @property
    def terms(self) -> list[tuple[float, str]]:
        """Values and labels of the sentences, or of the residual."""
        return [(c.value, str(c)) for c in self.contributions] or [(self.value, self.note)]


@dataclass(frozen=True)
class Explanation:
    """Why one class is ahead of another for an image; the contributions add up to the margin.

    A sentence contributes its cosine less the mean score of both classes, times its weight in its class:
    what all sentences have in common does not count. So a sentence of the answer counts for the answer if
    it fits the image better than average, and a sentence of the other class if it fits worse.

    Attributes
    ----------
    image : str
        The name of the image.
    answer, against : str
        The two classes.
    margin : float
        The logit of `answer` less that of `against`.
    contributions : tuple of Contribution
        The sentences of both classes, largest absolute value first.
    residual : float
        What the residual adds to the margin.
    probability, against_probability : float
        The probabilities of both classes.
    removals : tuple of str
        A few sentences of `answer` whose removal puts `against` ahead; empty if there are none.

    Examples
    --------
    >>> from promptboost.model import PromptClassifier, PromptEnsemble, Round
    >>> vectors = {"a cat": [1.0, 0.0], "a dog": [0.0, 1.0], "a pet": [0.6, 0.8]}
    >>> banks = {"cat": {"a cat": 1}, "dog": {"a dog": 1, "a pet": 1}}
    >>> ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.0, 0.0),), logit_scale=10.0)
    >>> (why,) = PromptClassifier(ensemble, vectors).explain(np.array([[0.8, 0.6]]))
    >>> print(why)
    row 1: cat (55%) rather than dog (45%), margin 0.20
      Like cat
        +0.10  a cat
      Unlike dog
        +0.95  a dog
        -0.85  a pet
      + is evidence for cat: a sentence of cat that fits better than average, or one of dog that fits worse.
    """

    image: str
    answer: str
    against: str
    margin: float
    contributions: tuple[Contribution, ...]
    residual: float
    probability: float
    against_probability: float
    removals: tuple[str, ...] = ()

    def folded(self, most: int | None = TERMS) -> "Explanation":
        """Keep the `most` largest terms, with the residual; sum up the other sentences of each class."""
        if most is None or len(self.contributions) + bool(self.residual) <= most:
            return self
        named = sorted((c for c in self.contributions if c.prompt), key=lambda c: -abs(c.value))
        shown = named[: max(0, most - bool(self.residual))]
        sums = []
        for name in (self.answer, self.against):
            others = [c for c in self.contributions if c.class_name == name and c not in shown]
            if others:
                weight = sum(c.weight for c in others)
                cosine = sum(c.weight * c.cosine for c in others) / (weight or 1.0)
                value, number = sum(c.value for c in others), sum(c.count for c in others)
                sums.append(Contribution(name, "", value, cosine, weight, number))
        return replace(self, contributions=(*shown, *sums))

    @property
    def groups(self) -> tuple[EvidenceGroup, ...]:
        """The evidence in groups (each class, and the residual), whose values add up to the margin."""
        titles = {self.answer: f"Like {self.answer}", self.against: f"Unlike {self.against}"}
        groups = []
        for name, title in titles.items():
            terms = tuple(c for c in self.contributions if c.class_name == name)
            groups.append(EvidenceGroup(title, sum(c.value for c in terms), terms))
        if self.residual:
            note = "learned from images, not in words"
            groups.append(EvidenceGroup("Residual", self.residual, note=note))
        return tuple(groups)

    @property
    def reading(self) -> str:
        """How to read the contributions, in one line."""
        return (
            f"+ is evidence for {self.answer}: a sentence of {self.answer} that fits better than "
            f"average, or one of {self.against} that fits worse."
        )

    def record(self, most: int | None = None) -> dict[str, Any]:
        """Return a JSON-serializable record; the values of the groups add up to the margin."""
        return {
            "image": self.image,
            "answer": self.answer,
            "against": self.against,
            "margin": self.margin,
            "groups": msgspec.to_builtins(self.folded(most).groups),
            "residual": self.residual,
            "probability": self.probability,
            "against_probability": self.against_probability,
            "reading": self.reading,
            "changes": {
                "removals": list(self.removals),
                "text_only": self.answer if self.margin - self.residual > 0 else self.against,
            },
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Explanation":
        """Read what :meth:`record` wrote; raise a SettingError for anything else."""
        try:
            groups = msgspec.convert(record["groups"], tuple[EvidenceGroup, ...])
            return cls(
                image=str(record["image"]),
                answer=str(record["answer"]),
                against=str(record["against"]),
                margin=float(record["margin"]),
                residual=float(record["residual"]),
                probability=float(record["probability"]),
                against_probability=float(record["against_probability"]),
                contributions=tuple(c for group in groups for c in group.contributions),
                removals=tuple(str(text) for text in record["changes"]["removals"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise SettingError(f"this is no explanation: {error!r}") from error

    def changes(self) -> list[str]:
        """Describe the changes that would change the prediction."""
        lines = []
        if self.margin > 0 >= self.margin - self.residual:
            lines.append(f"by the text alone it would be {self.against}")
        if self.removals:
            what = " and ".join(repr(text) for text in self.removals)
            lines.append(f"without {what} it would be {self.against}")
        elif self.margin > 0:
            lines.append(f"no small set of {self.answer} sentences explains it")
        return lines

    def text(self, most: int | None = TERMS) -> str:
        """Return the groups as text, with at most so many terms; None shows all."""
        lines = [
            f"{self.image}: {self.answer} ({percent(self.probability, 0)}) rather than {self.against} "
            f"({percent(self.against_probability, 0)}), margin {self.margin:.2f}"
        ]
        for group in self.folded(most).groups:
            lines.append(f"  {group.title}")
            lines += [f"    {value:+.2f}  {label}" for value, label in group.terms]
        return "\n".join([*lines, f"  {self.reading}"])

    def __str__(self) -> str:
        return self.text()

    def html(self, most: int | None = TERMS) -> str:
        """Return the groups as a figure: a bar for each term, to the right if it is positive."""
        groups = self.folded(most).groups
        widest = max(abs(value) for group in groups for value, _ in group.terms) or 1.0
        rows = ""
        for group in groups:
            style = f"{_CELL};padding-top:.6em;font-weight:600"
            head = f'<th colspan="3" style="{style}">{escape(group.title)}</th>'
            bars = "".join(_bar(value, label, widest) for value, label in group.terms)
            rows += f"<tr>{head}</tr>{bars}"
        changes = "".join(f"<li>{escape(line)}</li>" for line in self.changes())
        return (
            f'<figure class="pb-explanation" style="{_FIGURE}"><figcaption>'
            f"<b>{escape(self.answer)}</b> ({percent(self.probability, 0)}) rather than "
            f"<b>{escape(self.against)}</b> ({percent(self.against_probability, 0)}), "
            f"margin {self.margin:.2f}<br>{escape(self.reading)}</figcaption>"
            f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>'
            f'<ul style="margin:.4em 0;padding-left:1.2em">{changes}</ul></figure>'
        )

    def _repr_html_(self) -> str:
        return self.html()


_FIGURE = "margin:0;max-width:52rem;overflow-x:auto;font:14px/1.4 system-ui,sans-serif"
_TABLE = "border-collapse:collapse;margin:.5em 0"
_CELL = "padding:2px 8px;text-align:left;border:0;vertical-align:top"
_FOR, _AGAINST = "#2b7bba", "#d1662c"  # distinct for color-blind people too, on light and on dark


def _bar(value: float, label: str, widest: float) -> str:
    half = 50 * abs(value) / widest
    side = f"left:50%;background:{_FOR}" if value > 0 else f"right:50%;background:{_AGAINST}"
    bar = (
        '<span style="position:relative;display:inline-block;width:6em;height:.9em" aria-hidden="true">'
        f'<span style="position:absolute;top:0;bottom:0;width:{half:.1f}%;{side}"></span></span>'
    )
    return (
        f'<tr><td style="{_CELL};text-align:right;font-variant-numeric:tabular-nums">{value:+.2f}</td>'
        f'<td style="{_CELL}">{bar}</td><td style="{_CELL}">{escape(label)}</td></tr>'
    )


def explain_rows(
    ensemble: PromptEnsemble,
    head: Head,
    vectors: Mapping[str, NDArray[np.floating]],
    embeddings: NDArray[np.floating],
    images: Sequence[str],
    *,
    answer: str | None = None,
    against: str | None = None,
) -> list[Explanation]:
    """Explain the predictions for embeddings (n, D) of `images`, in double precision.

    `vectors` has the embedding of each sentence. By default the classes compared are the predicted one and
    the next most probable one.
    """
    names = ensemble.class_names
    if answer is not None and answer == against:
        raise SettingError(f"answer and against are both {answer!r}: give two classes")
    rows = np.asarray(embeddings, dtype=np.float64)
    shares = {name: ensemble.prompts(name) for name in names}
    sentences = {
        name: np.stack([np.asarray(vectors[text], dtype=np.float64) for text in share])
        for name, share in shares.items()
    }
    text_rows = np.stack(
        [np.array(list(shares[name].values())) @ sentences[name] for name in names]
    )
    factor = head.factor
    beyond_text = head.matrix.astype(np.float64) - head.weights.astype(np.float64)
    residual_rows = beyond_text * (factor / head.rounds)
    logits = rows @ (factor * text_rows + residual_rows).T
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    explanations = []
    for row, image, logit, chance in zip(rows, images, logits, chances, strict=True):
        first, second = _pair(logit, names, answer, against)
        scores = text_rows[[first, second]] @ row
        middle = scores.mean()
        contributions = [
            Contribution(
                names[k], text, float(sign * factor * share * (cosine - middle)), cosine, share
            )
            for k, sign in ((first, 1.0), (second, -1.0))
            for (text, share), cosine in zip(
                shares[names[k]].items(), (sentences[names[k]] @ row).tolist(), strict=True
            )
        ]
        contributions.sort(key=lambda contribution: -abs(contribution.value))
        residual = float((residual_rows[first] - residual_rows[second]) @ row)
        cosines = {c.prompt: c.cosine for c in contributions if c.class_name == names[first]}
        margin = float(logit[first] - logit[second])
        explanations.append(
            Explanation(
                image=image,
                answer=names[first],
                against=names[second],
                margin=margin,
                contributions=tuple(contributions),
                residual=residual,
                probability=float(chance[first]),
                against_probability=float(chance[second]),
                removals=_removals(ensemble, names[first], cosines, margin / factor),
            )
        )
    return explanations


def _pair(
    logits: NDArray[np.float64], names: Sequence[str], answer: str | None, against: str | None
) -> tuple[int, int]:
    """Choose the classes to compare: the given ones, else the most probable."""
    order = np.argsort(-logits, kind="stable").tolist()
    wanted = None if against is None else _position(names, against)
    first = next(k for k in order if k != wanted) if answer is None else _position(names, answer)
    return first, next(k for k in order if k != first) if wanted is None else wanted


def _position(class_names: Sequence[str], name: str) -> int:
    """Return the position of a class; raise if there is none of that name."""
    if name not in class_names:
        raise LabelError(
            f"there is no class {name!r}; there are {', '.join(map(repr, class_names[:10]))}"
            f"{', …' if len(class_names) > 10 else ''}"
        )
    return list(class_names).index(name)


def _removals(
    ensemble: PromptEnsemble, name: str, cosines: Mapping[str, float], lead: float
) -> tuple[str, ...]:
    """Find a few sentences of a class without which it is no longer ahead by `lead` in mean cosine.

    Greedily, the one with the largest effect first. No bank is emptied.
    """
    if lead <= 0:
        return ()
    banks = [dict(round_.banks[name]) for round_ in ensemble.rounds]
    removed: list[str] = []

    def score(banks: Sequence[Mapping[str, int]]) -> float:
        return float(
            np.mean([sum(c * cosines[t] for t, c in b.items()) / sum(b.values()) for b in banks])
        )

    start = score(banks)
    while len(removed) < _REMOVALS:
        tried = {}
        for text in {text for bank in banks for text in bank}:
            less = [{t: c for t, c in bank.items() if t != text} for bank in banks]
            if all(less):
                tried[text] = score(less), less
        if not tried:
            return ()
        text = min(tried, key=lambda text: (tried[text][0], text))
        lowest, banks = tried[text]
        removed.append(text)
        if start - lowest > lead:
            return tuple(removed)
    return ()

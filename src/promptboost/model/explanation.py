"""Explanation: the contribution of each sentence to a prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import LabelError, SettingError, percent
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.head import Head

#: Sentences that are removed at most until a prediction changes.
_REMOVALS = 5
#: Sentences that a figure shows.
SHOWN = 12


@dataclass(frozen=True)
class Contribution:
    """The contribution of a sentence to the margin of one class over another.

    Attributes
    ----------
    class_name : str
        The class whose sentence it is.
    prompt : str
        The sentence.
    value : float
        Its contribution to the margin: positive for the answer, negative for the other class.
    cosine : float
        Cosine of image and sentence.
    weight : float
        The sentence's share in the score of its class.
    """

    class_name: str
    prompt: str
    value: float
    cosine: float
    weight: float


@dataclass(frozen=True)
class Explanation:
    """Why one class is ahead of another for an image; the contributions add up to the margin.

    A sentence contributes its cosine less the mean score of both classes, times its weight in its class:
    what all sentences have in common does not count.

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
    row 1: cat rather than dog, 55 % against 45 %, ahead by 0.20
      +0.95  dog  a dog
      -0.85  dog  a pet
      +0.10  cat  a cat
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

    def record(self, most: int | None = None) -> dict[str, Any]:
        """Return a JSON-serializable record; the values and the residual add up to the margin.

        Sentences beyond the first `most` are summed up as ``others``.
        """
        left = () if most is None else self.contributions[most:]
        total = sum(contribution.value for contribution in left)
        others = {"others": total, "left_out": len(left)} if left else {}
        return {
            "image": self.image,
            "answer": self.answer,
            "against": self.against,
            "margin": self.margin,
            "contributions": [
                {
                    "class": contribution.class_name,
                    "prompt": contribution.prompt,
                    "value": contribution.value,
                    "cosine": contribution.cosine,
                    "weight": contribution.weight,
                }
                for contribution in self.contributions[:most]
            ],
            **others,
            "residual": self.residual,
            "probability": self.probability,
            "against_probability": self.against_probability,
            "changes": {
                "removals": list(self.removals),
                "text_only": self.answer if self.margin - self.residual > 0 else self.against,
            },
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Explanation":
        """Read what :meth:`record` wrote; raise a SettingError for anything else."""
        try:
            parts = [
                Contribution(
                    str(contribution["class"]),
                    str(contribution["prompt"]),
                    float(contribution["value"]),
                    float(contribution["cosine"]),
                    float(contribution["weight"]),
                )
                for contribution in record["contributions"]
            ]
            if record.get("left_out"):
                text = f"{int(record['left_out'])} other sentences together"
                parts.append(Contribution("", text, float(record["others"]), 0.0, 0.0))
            return cls(
                image=str(record["image"]),
                answer=str(record["answer"]),
                against=str(record["against"]),
                margin=float(record["margin"]),
                residual=float(record["residual"]),
                probability=float(record["probability"]),
                against_probability=float(record["against_probability"]),
                contributions=tuple(parts),
                removals=tuple(str(text) for text in record["changes"]["removals"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SettingError(f"this is no explanation: {error!r}") from error

    def changes(self) -> list[str]:
        """Describe the changes that would change the prediction."""
        lines = []
        if self.margin > 0 >= self.margin - self.residual:
            lines.append(f"by the words alone it would be {self.against}")
        if self.removals:
            what = " and ".join(repr(text) for text in self.removals)
            lines.append(f"without {what} it would be {self.against}")
        elif self.margin > 0:
            lines.append(f"no few sentences of {self.answer} decide it alone")
        return lines

    def __str__(self) -> str:
        lines = [f"{self.image}: {self.answer} rather than {self.against}, {self._lead()}"]
        width = max(map(len, (self.answer, self.against)))
        lines += [f"  {value:+.2f}  {name:<{width}}  {text}" for value, name, text in self._parts()]
        return "\n".join(lines)

    def _lead(self) -> str:
        probabilities = (self.probability, self.against_probability)
        return (
            f"{' against '.join(percent(p, 0) for p in probabilities)}, ahead by {self.margin:.2f}"
        )

    def _parts(self) -> list[tuple[float, str, str]]:
        """Return value, class and sentence of each bar of a figure; the last sums up all further ones."""
        parts = [
            (contribution.value, contribution.class_name, contribution.prompt)
            for contribution in self.contributions
        ]
        if len(parts) > SHOWN + 1:
            others = sum(value for value, _, _ in parts[SHOWN:])
            parts[SHOWN:] = [(others, "", f"{len(parts) - SHOWN} other sentences together")]
        if self.residual:
            parts.append((self.residual, "", "the residual: what words did not say"))
        return parts

    def _repr_html_(self) -> str:
        """Return a figure: a bar for each sentence, to the right if it is positive."""
        bars = self._parts()
        widest = max((abs(value) for value, _, _ in bars), default=1.0) or 1.0
        rows = "".join(_bar(value, name, text, widest) for value, name, text in bars)
        changes = "".join(f"<li>{escape(line)}</li>" for line in self.changes())
        return (
            f'<figure class="pb-explanation" style="{_FIGURE}">'
            f"<figcaption><b>{escape(self.answer)}</b> rather than <b>{escape(self.against)}</b>, "
            f"{self._lead()}"
            f'</figcaption><table style="{_TABLE}"><thead><tr>'
            f'<th style="{_CELL};text-align:right">part</th><th style="{_CELL}">against · for</th>'
            f'<th style="{_CELL}">of</th><th style="{_CELL}">sentence</th></tr></thead>'
            f"<tbody>{rows}</tbody></table>"
            f'<ul style="margin:.4em 0;padding-left:1.2em">{changes}</ul></figure>'
        )


_FIGURE = "margin:0;max-width:52rem;overflow-x:auto;font:14px/1.4 system-ui,sans-serif"
_TABLE = "border-collapse:collapse;margin:.5em 0"
_CELL = "padding:2px 8px;text-align:left;border:0;vertical-align:top"
_FOR, _AGAINST = "#2b7bba", "#d1662c"  # distinct for color-blind people too, on light and on dark


def _bar(value: float, name: str, text: str, widest: float) -> str:
    half = 50 * abs(value) / widest
    side = f"left:50%;background:{_FOR}" if value > 0 else f"right:50%;background:{_AGAINST}"
    bar = (
        '<span style="position:relative;display:inline-block;width:9em;height:.9em;'
        'border-left:1px solid transparent" aria-hidden="true">'
        f'<span style="position:absolute;top:0;bottom:0;width:{half:.1f}%;{side}"></span></span>'
    )
    return (
        f'<tr><td style="{_CELL};text-align:right;font-variant-numeric:tabular-nums">{value:+.2f}</td>'
        f'<td style="{_CELL}">{bar}</td><td style="{_CELL}">{escape(name)}</td>'
        f'<td style="{_CELL}">{escape(text)}</td></tr>'
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
    """Explain the predictions for embeddings (n, D), in double precision.

    Parameters
    ----------
    ensemble : PromptEnsemble
        The text.
    head : Head
        The text in the space of the embeddings, and its residual.
    vectors : mapping of str to array
        The embedding of each sentence.
    embeddings : array of shape (n, D)
        One row for each image.
    images : sequence of str
        Their names.
    answer, against : str, optional
        The classes to compare; by default the predicted class and the next most probable one.
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
        parts = [
            Contribution(
                names[k], text, float(sign * factor * share * (cosine - middle)), cosine, share
            )
            for k, sign in ((first, 1.0), (second, -1.0))
            for (text, share), cosine in zip(
                shares[names[k]].items(), (sentences[names[k]] @ row).tolist(), strict=True
            )
        ]
        parts.sort(key=lambda part: -abs(part.value))
        residual = float((residual_rows[first] - residual_rows[second]) @ row)
        cosines = dict(zip(shares[names[first]], sentences[names[first]] @ row, strict=True))
        margin = float(logit[first] - logit[second])
        explanations.append(
            Explanation(
                image=image,
                answer=names[first],
                against=names[second],
                margin=margin,
                contributions=tuple(parts),
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

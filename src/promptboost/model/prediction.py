"""Prediction: the record of one image's answer, as every output writes it."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import ArrayLike

#: Fields that every record has, in the order of columns.
FIELDS = ("image", "predicted", "probability", "unsure", "top", "error")


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
        The predicted class; None if the answer is unsure, or the image cannot be read.
    probability : float or None
        The probability of the most probable class.
    unsure : bool
        Whether that probability is below the required minimum.
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
        **fields
            `label`, `zero_shot`, `text_share` and `explanation`.
        """
        chances = np.asarray(probabilities, dtype=np.float64)
        order = np.argsort(-chances, kind="stable").tolist()
        if best is not None and best != order[0]:  # probabilities that round to the same number
            order = [best, *(k for k in order if k != best)]
        top = tuple(ClassProbability(class_names[k], float(chances[k])) for k in order[:top_k])
        unsure = top[0].probability < min_probability
        return cls(
            image=image,
            predicted=None if unsure else top[0].class_name,
            probability=top[0].probability,
            unsure=unsure,
            top=top,
            **fields,
        )

    def record(self) -> dict[str, Any]:
        """Return a JSON-serializable dict."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return {**record, "top": list(record["top"])}

    def to_json(self) -> str:
        """Return one line of ASCII JSON, with control characters escaped."""
        return json.dumps(self.record(), allow_nan=False).replace("\x7f", "\\u007f")

    def cells(self, columns: Sequence[str]) -> list[str]:
        """Return the values of CSV columns: fields, or ``class_2`` and ``probability_2`` of `top`."""
        values = self.record()
        for k, choice in enumerate(values["top"], start=1):
            values |= {f"{name}_{k}": value for name, value in choice.items()}
        return [_cell(values.get(name)) for name in columns]


def csv_columns(top_k: int = 1, *, abstain: bool = False) -> list[str]:
    """Return the CSV columns of predictions; without `abstain`, `predicted` is the first of `top`.

    Examples
    --------
    >>> csv_columns()
    ['image', 'predicted', 'probability', 'unsure', 'error']
    >>> csv_columns(2)[5:]
    ['class_1', 'probability_1', 'class_2', 'probability_2']
    """
    numbers = range(1, top_k + 1) if top_k > 1 or abstain else ()
    top = [f"{name}_{k}" for k in numbers for name in ("class", "probability")]
    return [*(name for name in FIELDS if name != "top"), *top]


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
    return "" if value is None else str(value)

"""What every embedded ensemble can do: score and decide."""

from abc import ABC, abstractmethod
from collections import Counter
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.errors import EmbeddingError, LabelError, SettingError

__all__ = ["Head", "as_rows", "check_names", "check_positive", "check_text", "class_totals"]


class Head(ABC):
    """Class names and a way to count votes for them; everything else follows.

    A head adds up one number per class, its *total*: the rounds' scores for a
    :class:`~promptboost.head.LinearHead`, the rounds' votes for a
    :class:`~promptboost.head.voting.VotingHead`. The methods below are the same for both.
    """

    class_names: tuple[str, ...]

    @abstractmethod
    def _totals(self, X: ArrayLike) -> NDArray[np.floating]:
        """Add up the rounds: shape ``(n, K)``, the largest wins."""

    @property
    @abstractmethod
    def _largest_total(self) -> float:
        """The total of a class to which every round gives a score of one."""

    @property
    @abstractmethod
    def _log_odds(self) -> float:
        """What a total is multiplied by to become an unnormalised log-probability."""

    def scores(self, X: ArrayLike) -> NDArray[np.floating]:
        """Average the rounds: one number per class, on the scale of a single round.

        Parameters
        ----------
        X : array-like of shape (n, D)
            Image embeddings of the encoder the head was made with.

        Returns
        -------
        numpy.ndarray of shape (n, K)
        """
        return self._totals(X) / np.float32(self._largest_total)

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Count the boosting vote, centred over the classes, as SAMME and SAMME.R define it.

        Always has one column per class, for two classes too.
        """
        totals = self._totals(X).astype(np.float64)
        centred = totals - totals.mean(axis=1, keepdims=True)
        return np.asarray((len(self.class_names) - 1) * self._log_odds * centred)

    def predict_index(self, X: ArrayLike) -> NDArray[np.intp]:
        """Give the position of the winning class of each row; of equals, the first."""
        return np.asarray(np.argmax(self._totals(X), axis=1))

    def predict(self, X: ArrayLike) -> NDArray[np.str_]:
        """Give the name of the winning class of each row; of equals, the first."""
        return np.asarray(self.class_names, dtype=np.str_)[self.predict_index(X)]

    def predict_proba(self, X: ArrayLike, logit_scale: float | None = None) -> NDArray[np.float64]:
        """Turn :meth:`scores` into probabilities with a softmax.

        Parameters
        ----------
        X : array-like of shape (n, D)
            Image embeddings.
        logit_scale : float, optional
            Factor on the mean scores. By default the one that boosting implies (see the class);
            an encoder's own ``logit_scale`` gives the sharpness its zero-shot classifier has.

        Returns
        -------
        numpy.ndarray of shape (n, K)
            Rows sum to one, and the largest entry is the predicted class.

        Notes
        -----
        Boosting orders the classes; it does not calibrate them. Do not read these numbers as
        frequencies before you have compared them with frequencies.
        """
        scale = self._log_odds * self._largest_total if logit_scale is None else logit_scale
        check_positive("logit_scale", scale)
        logits = self._totals(X).astype(np.float64) * (scale / self._largest_total)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def as_rows(X: ArrayLike, dim: int) -> NDArray[np.float32]:
    """Check that X is a matrix of floating-point rows of length `dim`; give it as float32.

    Examples
    --------
    >>> as_rows([[0.6, 0.8]], dim=2)
    array([[0.6, 0.8]], dtype=float32)
    >>> as_rows([[0.6, 0.8]], dim=3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    promptboost.errors.EmbeddingError: The rows have 2 columns, the head has 3: ...
    """
    rows = np.asarray(X)
    if rows.ndim != 2:
        raise EmbeddingError(
            f"Embeddings must be a matrix with one row a picture; got {rows.ndim} dimension(s), "
            f"shape {rows.shape}. For a single picture, give row[None, :]."
        )
    if not np.issubdtype(rows.dtype, np.floating):
        raise EmbeddingError(
            f"Embeddings must be floating-point numbers; got dtype {rows.dtype}. "
            "Encode the pictures first, for example with encoder.encode_images."
        )
    if rows.shape[1] != dim:
        raise EmbeddingError(
            f"The rows have {rows.shape[1]} columns, the head has {dim}: embed the pictures with "
            "the encoder the head was made with, or embed the ensemble with theirs."
        )
    with np.errstate(over="ignore"):  # what overflows is reported with the other bad rows
        return rows.astype(np.float32, copy=False)


def class_totals(rows: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Multiply rows by class rows, refusing rows that are not finite.

    Bad values spread to the product, which has fewer columns: looking there keeps prediction as
    fast as the product alone.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        product = rows @ weights.T
        suspect = not np.isfinite(product.sum())  # cheaper than a look at each value
    if suspect and not np.isfinite(product).all():
        bad = np.flatnonzero(~np.isfinite(product).all(axis=1))
        raise EmbeddingError(
            f"{bad.size} of {len(rows)} rows hold NaN, infinite or huge values, the first is row "
            f"{bad[0]}: leave these pictures out or encode them again."
        )
    return product


def check_text(field_name: str, value: object) -> None:
    """Check a field that says where a head comes from, or is not known."""
    if value is not None and not isinstance(value, str):
        raise SettingError(f"{field_name} is {value!r}: give a string or None.")


def check_positive(field_name: str, value: object) -> None:
    """Check a field that must be a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < np.inf:
        raise SettingError(f"{field_name} is {value!r}: give a positive number.")


def check_names(class_names: tuple[str, ...], n_rows: int) -> None:
    """Check that a head has one row per class, and names each class once."""
    names: object = class_names
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise LabelError("class_names must be a tuple of strings.")
    if len(class_names) != n_rows:
        raise LabelError(f"{len(class_names)} class names for {n_rows} rows of weights.")
    if len(class_names) < 2:
        raise LabelError("A head needs at least two classes.")
    if len(set(class_names)) != len(class_names):
        twice = [name for name, count in Counter(class_names).items() if count > 1]
        raise LabelError(f"Class names occur twice: {', '.join(map(repr, twice))}.")

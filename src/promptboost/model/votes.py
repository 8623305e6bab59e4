"""VotingHead: an ensemble whose rounds cast one vote each, embedded by one encoder."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.errors import EmbeddingError, WeightError
from promptboost.model.head import SavedHead, as_rows, class_totals


@dataclass(frozen=True, eq=False)
class VotingHead(SavedHead):
    r"""The hard vote of SAMME: every round names one class, with weight :math:`\alpha_m`.

    A vote is not linear in the image, so the rounds stay apart: prediction costs one K × D
    product per round. With :math:`v_k(x)` the sum of :math:`\alpha_m` over the rounds that name
    class k, the vote is :math:`f_k = (K-1)(v_k - \mathrm{mean}_j v_j)`, and :meth:`predict_proba`
    is :math:`\mathrm{softmax}(v)` unless there is a `logit_scale`.

    Parameters
    ----------
    class_names : tuple of str
        One name per row of each round's matrix.
    weights : array of shape (M, K, D)
        The mean prompt row of each round and class; kept as read-only float32.
    votes : array of shape (M,)
        :math:`\alpha`, none negative and not all zero; kept as read-only float64.
    encoder_id, encoder_fingerprint : str, optional
        The encoder that embedded the prompts.
    ensemble_fingerprint : str, optional
        The text that was embedded.
    logit_scale : float, optional
        Factor on the shares of the vote that :meth:`predict_proba` takes.

    Examples
    --------
    Two rounds say the first class, but a third has more weight than both:

    >>> import numpy as np
    >>> one, other = np.eye(2), np.eye(2)[::-1]
    >>> head = VotingHead(("cat", "dog"), np.stack([one, one, other]), np.array([1.0, 1.0, 3.0]))
    >>> head.predict(np.array([[1.0, 0.0]])).tolist()
    ['dog']
    >>> head.scores(np.array([[1.0, 0.0]])).round(2)
    array([[0.4, 0.6]])
    """

    form = "promptboost-voting-head"
    arrays = ("weights", "votes")

    class_names: tuple[str, ...]
    weights: NDArray[np.float32] = field(repr=False)
    votes: NDArray[np.float64] = field(repr=False)
    encoder_id: str | None = None
    encoder_fingerprint: str | None = None
    ensemble_fingerprint: str | None = None
    logit_scale: float | None = None

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float32, order="C")
        votes = np.array(self.votes, dtype=np.float64)
        if weights.ndim != 3 or 0 in weights.shape or not np.isfinite(weights).all():
            raise EmbeddingError(
                f"The weights must be a finite M × K × D array; got shape {weights.shape}"
                f"{'' if np.isfinite(weights).all() else ' with values that are not finite'}."
            )
        self._settle(weights=weights, votes=votes)
        if votes.shape != weights.shape[:1] or not (np.isfinite(votes) & (votes >= 0)).all():
            raise WeightError(f"Give one vote, not negative, for each of {len(weights)} rounds.")
        if not votes.any():
            raise WeightError("All votes are zero: give at least one round a positive vote.")

    @property
    def rounds(self) -> int:
        """How many rounds vote."""
        return len(self.weights)

    def _totals(self, X: ArrayLike) -> NDArray[np.floating]:
        rows = as_rows(X, self.dim)
        totals = np.zeros((len(rows), len(self.class_names)))
        every = np.arange(len(rows))
        for weights, vote in zip(self.weights, self.votes, strict=True):
            totals[every, np.argmax(class_totals(rows, weights), axis=1)] += vote
        return totals

    @property
    def _largest_total(self) -> float:
        return float(self.votes.sum())

    @property
    def _log_odds(self) -> float:
        return 1.0

"""LinearHead: an ensemble of prompts, embedded by one encoder, as one matrix."""

import os
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.errors import EmbeddingError, FileFormatError, InputError, SettingError
from promptboost.head.base import (
    Head,
    as_rows,
    check_names,
    check_positive,
    check_text,
    class_totals,
)
from promptboost.head.tensors import read_tensors, write_tensors

__all__ = ["Head", "LinearHead"]

_FORMAT = "promptboost-linear-head"
_TEXT_FIELDS = ("encoder_id", "encoder_fingerprint", "ensemble_fingerprint")


@dataclass(frozen=True, eq=False)
class LinearHead(Head):
    r"""The SAMME.R vote of all rounds as one K × D matrix.

    Round m scores class k by the mean cosine :math:`s^{(m)}_k = x \cdot \bar t^{(m)}_k` over the
    copies in its bank, and :math:`p^{(m)} = \mathrm{softmax}(s^{(m)} / \tau)`. SAMME.R adds up
    :math:`(K-1)(\log p_k - \mathrm{mean}_j \log p_j)` over the rounds. The partition function is
    the same for all classes and cancels, which leaves, with :math:`W_k = \sum_m \bar t^{(m)}_k`,

    .. math:: f_k(x) = \frac{K-1}{\tau} \bigl(x \cdot W_k - \mathrm{mean}_j\, x \cdot W_j\bigr)

    so that predicting costs one product with a K × D matrix, however many rounds there were.

    Parameters
    ----------
    class_names : tuple of str
        One name per row of `weights`.
    weights : array of shape (K, D)
        :math:`W`; kept as read-only float32.
    rounds : int, default=1
        How many rounds `weights` adds up.
    temperature : float, default=1.0
        :math:`\tau`. It scales the vote and cannot change who wins it.
    encoder_id, encoder_fingerprint : str, optional
        The encoder that embedded the prompts.
    ensemble_fingerprint : str, optional
        The text that was embedded.

    Notes
    -----
    SAMME.R clips probabilities at the machine epsilon :math:`\epsilon` before it takes logarithms.
    Cosines lie in [−1, 1], so :math:`p_k \ge e^{-2/\tau}/K`, and clipping never acts while
    :math:`\tau > 2 / (\ln(1/\epsilon) - \ln K)`: in double precision 0.06 suffices for 10 classes,
    0.07 for 1,000 and 0.1 for nine million. Below that bound the head is the vote without
    clipping.

    :meth:`predict_proba` takes ``logit_scale = rounds / temperature`` unless told otherwise:
    :math:`\mathrm{softmax}(\sum_m s^{(m)} / \tau)`, the normalised product of the rounds'
    softmaxes.

    Examples
    --------
    >>> import numpy as np
    >>> head = LinearHead(("cat", "dog"), np.array([[0.8, 0.6], [0.0, 1.0]]))
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> head.predict(X).tolist()
    ['cat', 'dog']
    >>> head.decision_function(X).round(2)
    array([[ 0.4, -0.4],
           [-0.2,  0.2]])
    """

    class_names: tuple[str, ...]
    weights: NDArray[np.float32] = field(repr=False)
    rounds: int = 1
    temperature: float = 1.0
    encoder_id: str | None = None
    encoder_fingerprint: str | None = None
    ensemble_fingerprint: str | None = None

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float32, order="C")
        if weights.ndim != 2 or weights.shape[1] == 0 or not np.isfinite(weights).all():
            raise EmbeddingError(
                f"The weights must be a finite K × D matrix; got shape {weights.shape}"
                f"{'' if np.isfinite(weights).all() else ' with values that are not finite'}."
            )
        check_names(self.class_names, len(weights))
        if type(self.rounds) is not int or self.rounds < 1:
            raise SettingError(f"rounds is {self.rounds!r}: give a whole number from 1 up.")
        check_positive("temperature", self.temperature)
        for name in _TEXT_FIELDS:
            check_text(name, getattr(self, name))
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "class_names", tuple(self.class_names))

    @property
    def dim(self) -> int:
        """Length of the rows it takes."""
        return int(self.weights.shape[1])

    def _totals(self, X: ArrayLike) -> NDArray[np.floating]:
        return class_totals(as_rows(X, self.dim), self.weights)

    @property
    def _largest_total(self) -> float:
        return float(self.rounds)

    @property
    def _log_odds(self) -> float:
        return 1.0 / self.temperature

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the head as a safetensors file, whole or not at all.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> head = LinearHead(("cat", "dog"), np.eye(2), encoder_id="fake:2-0")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     head.save(f"{folder}/head.safetensors")
        ...     LinearHead.load(f"{folder}/head.safetensors").encoder_id
        'fake:2-0'
        """
        fields = {
            "class_names": list(self.class_names),
            "rounds": self.rounds,
            "temperature": float(self.temperature),
            **{name: getattr(self, name) for name in _TEXT_FIELDS},
        }
        write_tensors(path, _FORMAT, {"weights": self.weights}, fields)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a head that :meth:`save` wrote.

        Raises
        ------
        FileFormatError
            If the file is cut off, not a head, or of a later version.
        """
        arrays, fields = read_tensors(path, _FORMAT, frozenset({"weights"}))
        try:
            return cls(weights=arrays["weights"], **fields)
        except (InputError, TypeError) as error:
            raise FileFormatError(f"{path}: {error}") from error

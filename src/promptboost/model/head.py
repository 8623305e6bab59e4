"""LinearHead: an ensemble of prompts, embedded by one encoder, as one matrix."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.errors import EmbeddingError, FileFormatError, InputError, LabelError, SettingError
from promptboost.io import load_json, open_regular, write_bytes

if TYPE_CHECKING:
    from promptboost.boosting.balance import Balance
    from promptboost.boosting.residual import Residual

SCHEMA_VERSION = 1

# safetensors keeps metadata in an unordered map: a single entry makes equal heads equal files.
_METADATA_KEY = "promptboost"


def write_tensors(
    path: str | os.PathLike[str],
    form: str,
    tensors: Mapping[str, NDArray[Any]],
    fields: Mapping[str, Any],
) -> None:
    """Write arrays and named fields as a safetensors file, whole or not at all."""
    from safetensors.numpy import save

    record = {"format": form, "schema_version": SCHEMA_VERSION, **fields}
    text = json.dumps(record, sort_keys=True, allow_nan=False)
    # A cache: where a link is in its place, the file replaces the link.
    write_bytes(path, save(dict(tensors), metadata={_METADATA_KEY: text}), follow=False)


def read_tensors(
    path: str | os.PathLike[str],
    form: str,
    names: frozenset[str],
    optional: frozenset[str] = frozenset(),
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote, or raise with the reason; `optional` arrays may be there."""
    from safetensors import SafetensorError, safe_open

    open_regular(path).close()  # safetensors would wait for a pipe
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            fields = _read_fields(path, form, file.metadata())
            there = frozenset(file.keys())
            if not names <= there <= names | optional:
                raise FileFormatError(
                    f"{path}: holds the arrays {sorted(there)}, not {sorted(names)}."
                )
            return {name: file.get_tensor(name) for name in there}, fields
    except (SafetensorError, TypeError, AttributeError) as error:
        # The last two: numbers of a type that numpy has not, such as bfloat16.
        raise FileFormatError(
            f"{path}: is cut off, damaged or not a safetensors file ({error}). "
            "Copy it again, or embed the ensemble again and save the head."
        ) from error


def _read_fields(
    path: str | os.PathLike[str], form: str, metadata: Mapping[str, str] | None
) -> dict[str, Any]:
    try:
        fields = load_json((metadata or {}).get(_METADATA_KEY, ""), "its metadata")
    except FileFormatError:
        fields = None
    if not isinstance(fields, dict) or not {"format", "schema_version"} <= set(fields):
        raise FileFormatError(f"{path}: is a safetensors file, but not one that promptboost wrote.")
    found, version = fields.pop("format"), fields.pop("schema_version")
    if found != form:
        raise FileFormatError(f"{path}: holds a {found!s:.60}, not a {form}.")
    if version != SCHEMA_VERSION:
        raise FileFormatError(
            f"{path}: has schema version {version!r:.60}, this promptboost reads {SCHEMA_VERSION}. If "
            "it was made by a later promptboost, upgrade with: pip install -U promptboost"
        )
    return fields


class Head(ABC):
    """Class names and a way to count votes for them; everything else follows.

    A head adds up one number per class, its *total*: the rounds' scores for a
    :class:`~promptboost.model.LinearHead`, the rounds' votes for a
    :class:`~promptboost.model.votes.VotingHead`. The methods below are the same for both.
    """

    class_names: tuple[str, ...]
    logit_scale: float | None = None

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

    @property
    def _scale(self) -> float | None:
        """Factor on the mean scores, where one is known."""
        return self.logit_scale

    def scores(self, X: ArrayLike) -> NDArray[np.floating]:
        """Average the rounds for embeddings (n, D): one number per class, (n, K)."""
        totals = self._totals(X)
        return totals / totals.dtype.type(self._largest_total)

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Count the boosting vote, centred over the classes, as SAMME and SAMME.R define it.

        Always has one column per class, for two classes too.
        """
        totals = self._totals(X).astype(np.float64)
        centred = totals - totals.mean(axis=1, keepdims=True)
        return np.asarray((len(self.class_names) - 1) * self._log_odds * centred)

    def predict_index(self, X: ArrayLike) -> NDArray[np.intp]:
        """Return the position of the winning class of each row; of equals, the first."""
        return np.asarray(np.argmax(self._totals(X), axis=1))

    def predict(self, X: ArrayLike) -> NDArray[np.str_]:
        """Return the name of the winning class of each row; of equals, the first."""
        return np.asarray(self.class_names, dtype=np.str_)[self.predict_index(X)]

    def predict_proba(self, X: ArrayLike, logit_scale: float | None = None) -> NDArray[np.float64]:
        """Turn :meth:`scores` into probabilities with a softmax; the rows sum to one.

        The factor on the scores is `logit_scale`, or the head's own, which the fit chose; if it has none,
        the one that boosting implies (see the class).
        """
        scale = self._scale if logit_scale is None else logit_scale
        if scale is None:
            scale = self._log_odds * self._largest_total
        check_positive("logit_scale", scale)
        logits = self._totals(X).astype(np.float64) * (scale / self._largest_total)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def as_rows(X: ArrayLike, dim: int) -> NDArray[np.float32]:
    """Check that X is a matrix of floating-point rows of length `dim`; return it as float32."""
    rows = np.asarray(X)
    if rows.ndim != 2:
        raise EmbeddingError(
            f"Embeddings must be a matrix with one row an image; got {rows.ndim} dimension(s), "
            f"shape {rows.shape}. For a single image, give row[None, :]."
        )
    if not np.issubdtype(rows.dtype, np.floating):
        raise EmbeddingError(
            f"Embeddings must be floating-point numbers; got dtype {rows.dtype}. "
            "Encode the images first, for example with encoder.encode_images."
        )
    if rows.shape[1] != dim:
        raise EmbeddingError(
            f"The rows have {rows.shape[1]} columns, the head has {dim}: embed the images with "
            "the encoder the head was made with, or embed the ensemble with theirs."
        )
    with np.errstate(over="ignore"):  # what overflows is reported with the other bad rows
        return rows.astype(np.float32, copy=False)


def class_totals(rows: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Multiply rows by class rows; raise for rows that are not finite."""
    # Bad values spread to the product, which has fewer columns: a look there costs least.
    with np.errstate(invalid="ignore", over="ignore"):
        product = rows @ weights.T
        suspect = not np.isfinite(product.sum())  # cheaper than a look at each value
    if suspect and not np.isfinite(product).all():
        bad = np.flatnonzero(~np.isfinite(product).all(axis=1))
        raise EmbeddingError(
            f"{bad.size} of {len(rows)} rows hold NaN, infinite or huge values, the first is row "
            f"{bad[0]}: leave these images out or encode them again."
        )
    return product


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
    if twice := [name for name, count in Counter(class_names).items() if count > 1]:
        raise LabelError(f"Class names occur twice: {', '.join(map(repr, twice))}.")


class SavedHead(Head):
    """What heads with a file of their own check, keep and write alike.

    They are dataclasses; `arrays` names the fields that hold arrays, and `form` their kind of file.
    """

    form: ClassVar[str]
    arrays: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    weights: NDArray[np.float32]
    encoder_id: str | None
    encoder_fingerprint: str | None
    ensemble_fingerprint: str | None

    @property
    def dim(self) -> int:
        """Length of the rows it takes."""
        return int(self.weights.shape[-1])

    def _settle(self, **arrays: NDArray[Any]) -> None:
        """Check the fields that both kinds have, and set the arrays, which nobody may write to."""
        check_names(self.class_names, arrays["weights"].shape[-2])
        if self.logit_scale is not None:
            check_positive("logit_scale", self.logit_scale)
        for name in ("encoder_id", "encoder_fingerprint", "ensemble_fingerprint"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise SettingError(f"{name} is {value!r}: give a string or None.")
        for name, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "class_names", tuple(self.class_names))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the head as a safetensors file, whole or not at all."""
        facts = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        facts.pop("balance", None)  # in a file of its own: see write_head
        arrays = {name: facts.pop(name) for name in (*self.arrays, *self.optional)}
        tensors = {name: array for name, array in arrays.items() if array is not None}
        for name in ("temperature", "logit_scale", "text_scale"):
            if name in facts and facts[name] is not None:
                facts[name] = float(facts[name])  # numpy's numbers are not JSON
            elif name in facts:
                del facts[name]
        write_tensors(path, self.form, tensors, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a head that :meth:`save` wrote; a FileFormatError says why it cannot be."""
        tensors, facts = read_tensors(
            path, cls.form, frozenset(cls.arrays), frozenset(cls.optional)
        )
        try:
            return cls(**tensors, **facts)
        except (InputError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path}: {error}") from error


@dataclass(frozen=True, eq=False)
class LinearHead(SavedHead):
    r"""The SAMME.R vote of all rounds as one K × D matrix.

    Round m scores class k by the mean cosine :math:`s^{(m)}_k = x \cdot \bar t^{(m)}_k` over the
    copies in its bank, and :math:`p^{(m)} = \mathrm{softmax}(s^{(m)} / \tau)`. SAMME.R adds up
    :math:`(K-1)(\log p_k - \mathrm{mean}_j \log p_j)` over the rounds. The partition function
    cancels, which leaves, with :math:`W_k = \sum_m \bar t^{(m)}_k`,

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
    logit_scale : float, optional
        Factor on the mean scores that :meth:`predict_proba` takes.
    residual : array of shape (K, D), optional
        :math:`V`, what the images taught that the words did not say: logits are then
        :math:`a\, x \cdot W_k / M + x \cdot V_k`, still one product with a K × D matrix.
    text_scale : float, optional
        :math:`a`, the factor on the mean scores beside a residual, in the place of `logit_scale`.
    balance : Balance, optional
        How loud a class may be that was added by words alone: see :mod:`promptboost.boosting.balance`.

    Notes
    -----
    SAMME.R clips probabilities at the machine epsilon :math:`\epsilon` before it takes logarithms.
    Cosines lie in [−1, 1], so :math:`p_k \ge e^{-2/\tau}/K`, and clipping never acts while
    :math:`\tau > 2 / (\ln(1/\epsilon) - \ln K)`, which is 0.07 for 1,000 classes in double precision.
    Below that bound the head is the vote without clipping.

    Without a `logit_scale`, :meth:`predict_proba` takes ``rounds / temperature``: the normalised
    product of the rounds' softmaxes.

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

    form = "promptboost-linear-head"
    arrays = ("weights",)
    optional = ("residual",)

    class_names: tuple[str, ...]
    weights: NDArray[np.float32] = field(repr=False)
    rounds: int = 1
    temperature: float = 1.0
    encoder_id: str | None = None
    encoder_fingerprint: str | None = None
    ensemble_fingerprint: str | None = None
    logit_scale: float | None = None
    residual: NDArray[np.float32] | None = field(default=None, repr=False)
    text_scale: float | None = None
    balance: "Balance | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float32, order="C")
        if weights.ndim != 2 or weights.shape[1] == 0 or not np.isfinite(weights).all():
            raise EmbeddingError(
                f"The weights must be a finite K × D matrix; got shape {weights.shape}"
                f"{'' if np.isfinite(weights).all() else ' with values that are not finite'}."
            )
        arrays = {"weights": weights}
        if (self.residual is None) != (self.text_scale is None):
            raise SettingError("residual and text_scale go together: give both or none.")
        if self.residual is not None:
            check_positive("text_scale", self.text_scale)
            residual = np.array(self.residual, dtype=np.float32, order="C")
            if residual.shape != weights.shape or not np.isfinite(residual).all():
                raise EmbeddingError(
                    f"The residual must be finite and of the shape of the weights, {weights.shape}; "
                    f"got {residual.shape}."
                )
            arrays["residual"] = residual
        self._settle(**arrays)
        if type(self.rounds) is not int or self.rounds < 1:
            raise SettingError(f"rounds is {self.rounds!r}: give a whole number from 1 up.")
        check_positive("temperature", self.temperature)

    @cached_property
    def matrix(self) -> NDArray[np.float32]:
        """Class rows of text and residual together, in units of the text's; added ones in balance."""
        rows = self.weights
        if self.residual is not None and self.text_scale is not None:
            rows = rows + self.residual * np.float32(self.rounds / self.text_scale)
        if self.balance is None:
            return rows
        lift = self.balance.text_lift if self.residual is None else self.balance.lift
        balanced = self.balance.rows(self.class_names, rows, self.rounds * lift)
        return np.asarray(balanced, dtype=np.float32)

    @property
    def beside_text(self) -> NDArray[np.float32] | None:
        """The residual and what keeps added classes in balance, which are added to the text's logits."""
        known = self.class_names if self.balance is None else self.balance.class_names
        if set(self.class_names) <= set(known):
            return self.residual
        scale = self._scale or self._log_odds * self._largest_total
        return (self.matrix - self.weights) * np.float32(scale / self.rounds)

    @property
    def residual_digest(self) -> str:
        """Changes with the residual, the factor on the text beside it, and the classes."""
        facts = json.dumps([list(self.class_names), self.text_scale]).encode()
        content = b"" if self.residual is None else self.residual.tobytes()
        return hashlib.sha256(facts + b"\0" + content).hexdigest()

    def with_residual(self, residual: "Residual") -> "LinearHead":
        """Return the head with a residual; the same if that is zero."""
        if not np.isfinite(residual.penalty):
            return self
        return replace(self, residual=residual.weights, text_scale=residual.text_scale)

    def without_residual(self) -> "LinearHead":
        """Return the head of the text alone."""
        return replace(self, residual=None, text_scale=None)

    def _totals(self, X: ArrayLike) -> NDArray[np.floating]:
        return class_totals(as_rows(X, self.dim), self.matrix)

    @property
    def _scale(self) -> float | None:
        return self.logit_scale if self.residual is None else self.text_scale

    @property
    def _largest_total(self) -> float:
        return float(self.rounds)

    @property
    def _log_odds(self) -> float:
        return 1.0 / self.temperature

"""Head: an ensemble of prompts, embedded by one encoder, as one matrix; and the balance of its classes."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import TextSource, embed_texts
from promptboost.errors import (
    EmbeddingError,
    EncoderError,
    FileFormatError,
    InputError,
    LabelError,
    SettingError,
)
from promptboost.io import load_json, open_regular, read_json, write_bytes, write_json
from promptboost.model.ensemble import PromptEnsemble, Round

if TYPE_CHECKING:
    from promptboost.boosting.residual import Residual

#: Digests of the residuals, and under "heads" the balances, by name of the head file.
RESIDUAL_FILE = "residual.json"

SCHEMA_VERSION = 1
_FORMAT = "promptboost-linear-head"

# safetensors keeps metadata in an unordered map: a single entry makes equal heads equal files.
_METADATA_KEY = "promptboost"

_NAME_LENGTH, _PATH_LENGTH = 255, 4096  # of most file systems, in bytes

# Of counts: 5% of 20 images is one image, although (1 - 0.95) * 20 is a little more.
_ROUNDING = 1e-9
# The smallest probability whose logarithm is finite.
_TINY = np.finfo(np.float64).tiny

#: Square of the length of the mean embedding below which images point in all directions: then a class
#: cannot be moved towards all of them at once.
SCATTERED = 0.02


@dataclass(frozen=True, eq=False)
class Balance:
    r"""Bias correction for classes that are added without training images.

    The sentences of a fit are chosen on images, and the residual corrects them; the sentences of an added
    class are not. Uncorrected, such a class is predicted too often where its sentences suit any image,
    and too rarely where the others have a residual. So its row is moved along the mean embedding of the
    training images, :math:`\mu`, until its score on the mean image is the average of the others plus a
    *lift*.
    """

    class_names: tuple[str, ...]  # those that had images
    center: NDArray[np.floating] = field(repr=False)  # the mean embedding of the images
    text_lift: float  # for the text alone, in units of cosines with the text
    lift: float  # with the residual

    def rows(
        self, class_names: tuple[str, ...], matrix: NDArray[np.floating], lift: float
    ) -> NDArray[np.floating]:
        """Return the class rows with the bias of added classes corrected."""
        learned = np.array([name in self.class_names for name in class_names])
        if learned.all() or not learned.any() or matrix.shape[1] != len(self.center):
            return matrix
        unit = self.center / (self.center @ self.center)
        scores = matrix @ self.center
        missing = np.where(learned, 0.0, scores[learned].mean() + lift - scores)
        return np.asarray(matrix + np.outer(missing, unit), dtype=matrix.dtype)

    def to_record(self) -> dict[str, Any]:
        """Return the balance as a JSON-serializable dict."""
        return {
            "class_names": list(self.class_names),
            "center": self.center.tolist(),
            "text_lift": self.text_lift,
            "lift": self.lift,
        }

    @classmethod
    def from_record(cls, record: object) -> "Balance | None":
        """Read what :meth:`to_record` returns; None for anything else, as the file may be damaged."""
        if not isinstance(record, Mapping):
            return None
        names, center = record.get("class_names"), record.get("center")
        lifts = [record.get(name) for name in ("text_lift", "lift")]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
        if not isinstance(center, list) or not all(_is_number(x) for x in (*center, *lifts)):
            return None
        mean = np.array(center, dtype=np.float64)
        if not SCATTERED / 2 <= mean @ mean <= 1.01:
            return None
        return cls(tuple(names), mean, *map(float, lifts))  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e6


@dataclass(frozen=True, eq=False)
class Head:
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
        :math:`W`; read-only. The head computes in its dtype, float32 or float64. If the residual is
        float64, its mean over the classes is added in float64.
    rounds : int, default=1
        How many rounds `weights` adds up.
    temperature : float, default=1.0
        :math:`\tau`. It scales the vote and cannot change who wins it.
    encoder_id, encoder_fingerprint : str, optional
        The encoder that embedded the prompts.
    ensemble_fingerprint : str, optional
        The ensemble that was embedded.
    logit_scale : float, optional
        Factor on the mean scores that :meth:`predict_proba` takes.
    residual : array of shape (K, D), optional
        :math:`V`, fitted to the images to correct the text: logits are then
        :math:`a\, x \cdot W_k / M + x \cdot V_k`, still one product with a K × D matrix.
    text_scale : float, optional
        :math:`a`, the factor on the mean scores with a residual, instead of `logit_scale`.
    pool_fingerprint : str, optional
        The pool that the residual was validated with; None if it was fitted without one.
    balance : Balance, optional
        Bias correction for classes without training images.
    calibration : array of shape (2, m), optional
        Of cross-validated training images, each row in increasing order: the largest logit, and the
        probability of the true class.

    Notes
    -----
    SAMME.R clips probabilities at the machine epsilon :math:`\epsilon` before it takes logarithms.
    Cosines lie in [−1, 1], so :math:`p_k \ge e^{-2/\tau}/K`, and clipping never acts while
    :math:`\tau > 2 / (\ln(1/\epsilon) - \ln K)`, which is 0.07 for 1,000 classes in double precision.
    Below that bound the head is the vote without clipping.

    Without a `logit_scale`, :meth:`predict_proba` takes ``rounds / temperature``: the normalized
    product of the rounds' softmaxes.

    A product in single precision may change in its last digits with the number of rows it is computed
    with. In double precision a row gets the same answer alone or among others, up to 1e-13 or so, which
    scikit-learn expects of a classifier.

    Examples
    --------
    >>> import numpy as np
    >>> head = Head(("cat", "dog"), np.array([[0.8, 0.6], [0.0, 1.0]]))
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> head.predict(X).tolist()
    ['cat', 'dog']
    >>> head.decision_function(X).round(2)
    array([[ 0.4, -0.4],
           [-0.2,  0.2]])
    """

    class_names: tuple[str, ...]
    weights: NDArray[np.floating] = field(repr=False)
    rounds: int = 1
    temperature: float = 1.0
    encoder_id: str | None = None
    encoder_fingerprint: str | None = None
    ensemble_fingerprint: str | None = None
    logit_scale: float | None = None
    residual: NDArray[np.floating] | None = field(default=None, repr=False)
    text_scale: float | None = None
    pool_fingerprint: str | None = None
    balance: Balance | None = field(default=None, repr=False)
    calibration: NDArray[np.floating] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        dtype = np.float64 if np.asarray(self.weights).dtype == np.float64 else np.float32
        arrays = {"weights": np.array(self.weights, dtype=dtype, order="C")}
        shape = arrays["weights"].shape
        finite = np.isfinite(arrays["weights"]).all()
        if len(shape) != 2 or shape[1] == 0 or not finite:
            problem = "" if finite else " with values that are not finite"
            raise EmbeddingError(
                f"The weights must be a finite K × D matrix; got shape {shape}{problem}."
            )
        if (self.residual is None) != (self.text_scale is None):
            raise SettingError("residual and text_scale go together: give both or none.")
        for name, expected in (("residual", shape), ("calibration", (2, -1))):
            if getattr(self, name) is not None:
                values = np.asarray(getattr(self, name))
                wide = name == "residual" and values.dtype == np.float64
                kind = np.float64 if wide else dtype
                arrays[name] = _further_array(name, values, expected, kind)
        _check_names(self.class_names, shape[0])
        if type(self.rounds) is not int or self.rounds < 1:
            raise SettingError(f"rounds is {self.rounds!r}: give a whole number from 1 up.")
        _check_positive("temperature", self.temperature)
        for name in ("logit_scale", "text_scale"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        for name in (
            "encoder_id",
            "encoder_fingerprint",
            "ensemble_fingerprint",
            "pool_fingerprint",
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise SettingError(f"{name} is {value!r}: give a string or None.")
        for name, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "class_names", tuple(self.class_names))

    @property
    def dim(self) -> int:
        """Length of the embeddings."""
        return int(self.weights.shape[1])

    @property
    def factor(self) -> float:
        """The factor that turns mean scores into logits."""
        scale = self.logit_scale if self.residual is None else self.text_scale
        return self.rounds / self.temperature if scale is None else scale

    @cached_property
    def matrix(self) -> NDArray[np.floating]:
        """Class rows of text and residual together, in units of the text's, with the balance applied."""
        rows, number = self.weights, self.weights.dtype.type
        if self.residual is not None and self.text_scale is not None:
            rows = rows + self.residual * number(self.rounds / self.text_scale)
        if self.balance is None:
            return rows
        lift = self.balance.text_lift if self.residual is None else self.balance.lift
        balanced = self.balance.rows(self.class_names, rows, self.rounds * lift)
        return np.asarray(balanced, dtype=rows.dtype)

    @cached_property
    def _parts(self) -> tuple[NDArray[np.floating], NDArray[np.floating] | None]:
        """The matrix in the dtype of the weights; of a wider one, its mean row is apart."""
        if self.matrix.dtype == self.weights.dtype:
            return self.matrix, None
        shared = self.matrix.mean(axis=0)
        return (self.matrix - shared).astype(self.weights.dtype), shared

    @property
    def residual_digest(self) -> str:
        """Digest of the residual, its text scale, and the classes."""
        facts = json.dumps([list(self.class_names), self.text_scale]).encode()
        content = b"" if self.residual is None else np.float32(self.residual).tobytes()
        return hashlib.sha256(facts + b"\0" + content).hexdigest()

    def with_residual(self, residual: "Residual") -> "Head":
        """Return the head with a residual, unless that is zero, and calibrated on its held-out images."""
        used, scale = dict[str, Any](), self.factor / residual.text_scale
        if residual.is_used:
            used, scale = {"residual": residual.weights, "text_scale": residual.text_scale}, 1.0
        return replace(self, **used, calibration=residual.calibration(scale))

    def without_residual(self) -> "Head":
        """Return the head of the text alone."""
        return replace(
            self, residual=None, text_scale=None, pool_fingerprint=None, calibration=None
        )

    # --- predicting ----------------------------------------------------------------------------

    def scores(self, X: ArrayLike) -> NDArray[np.floating]:
        """Average the rounds for embeddings (n, D): one number per class, (n, K)."""
        return self._totals(X) / self.weights.dtype.type(self.rounds)

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the boosting vote, centered over the classes, as SAMME.R defines it.

        Always has one column per class, for two classes too.
        """
        totals = self._totals(X).astype(np.float64)
        centered = totals - totals.mean(axis=1, keepdims=True)
        return np.asarray((len(self.class_names) - 1) * (1.0 / self.temperature) * centered)

    def predict_index(self, X: ArrayLike) -> NDArray[np.intp]:
        """Return the position of the winning class of each row; of equals, the first."""
        return np.asarray(np.argmax(self._totals(X), axis=1))

    def predict(self, X: ArrayLike) -> NDArray[np.str_]:
        """Return the name of the winning class of each row; of equals, the first."""
        return np.asarray(self.class_names, dtype=np.str_)[self.predict_index(X)]

    def predict_proba(self, X: ArrayLike, logit_scale: float | None = None) -> NDArray[np.float64]:
        """Turn :meth:`scores` into probabilities with a softmax; the rows sum to one.

        The scores are multiplied by `logit_scale`, by default by :attr:`factor`.
        """
        logits = self.logits(X, logit_scale)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def logits(self, X: ArrayLike, logit_scale: float | None = None) -> NDArray[np.float64]:
        """Multiply :meth:`scores` by `logit_scale`, by default by :attr:`factor`."""
        scale = self.factor if logit_scale is None else logit_scale
        _check_positive("logit_scale", scale)
        return self._totals(X).astype(np.float64) * (scale / self.rounds)

    def least_logit(self, accept: float = 0.95) -> float:
        """Return the largest logit that a share `accept` of cross-validated training images reach.

        An image whose largest logit is smaller probably shows none of the classes.
        """
        values = self._calibrated[0]
        return float(values[min(int((1 - accept) * len(values) + _ROUNDING), len(values) - 1)])

    def least_probability(self, coverage: float = 0.9) -> float:
        """Return the split-conformal threshold on the probability of a class.

        If an image is exchangeable with the cross-validated training images, its true class reaches the
        threshold with probability `coverage` or more. Zero if there are too few images for this.
        """
        values = self._calibrated[1]
        rank = int((1 - coverage) * (len(values) + 1) + _ROUNDING)
        return float(values[min(rank, len(values)) - 1]) if rank else 0.0

    @property
    def _calibrated(self) -> NDArray[np.floating]:
        if self.calibration is None:
            raise SettingError(
                "there are no cross-validated training images to set a threshold with: the fit had one "
                "image per class or no residual, or its text was edited or moved since; refit sets them"
            )
        return self.calibration

    def _totals(self, X: ArrayLike) -> NDArray[np.floating]:
        """Multiply embeddings with the matrix; raise for embeddings that are not finite."""
        rows = self._checked(X)
        # Bad values spread to the product, which has fewer columns and is checked faster.
        with np.errstate(invalid="ignore", over="ignore"):
            product = rows @ self._parts[0].T
            if self._parts[1] is not None:
                # Row by row: unlike BLAS, einsum does not depend on the other rows.
                product = product + np.einsum("nd,d->n", rows, self._parts[1])[:, None]
            suspect = not np.isfinite(product.sum())  # cheaper than checking each value
        if suspect and not np.isfinite(product).all():
            bad = np.flatnonzero(~np.isfinite(product).all(axis=1))
            raise EmbeddingError(
                f"{bad.size} of {len(rows)} rows hold NaN, infinite or huge values, the first is row "
                f"{bad[0]}: leave these images out or encode them again."
            )
        return product

    def _checked(self, X: ArrayLike) -> NDArray[np.floating]:
        """Check that X is a matrix of floating-point rows; return it in the dtype of the weights."""
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
        if rows.shape[1] != self.dim:
            raise EmbeddingError(
                f"The rows have {rows.shape[1]} columns, the head has {self.dim}: embed the images with "
                "the encoder the head was made with, or embed the ensemble with theirs."
            )
        with np.errstate(over="ignore"):  # overflow is reported with the other bad rows
            return rows.astype(self.weights.dtype, copy=False)

    # --- files ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the head as a safetensors file, without its balance; all but the residual in float32."""
        facts = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        del facts["balance"]  # written into residual.json: see write_head
        arrays = {name: facts.pop(name) for name in ("weights", "residual", "calibration")}
        tensors = {
            name: values if name == "residual" else values.astype(np.float32)
            for name, values in arrays.items()
            if values is not None
        }
        for name in ("temperature", "logit_scale", "text_scale"):
            value = facts.pop(name)
            if value is not None:
                facts[name] = float(value)  # numpy's numbers are not JSON
        write_tensors(path, _FORMAT, tensors, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a head that :meth:`save` wrote; raise a FileFormatError if that is not possible."""
        tensors, facts = read_tensors(
            path, _FORMAT, frozenset({"weights"}), frozenset({"residual", "calibration"})
        )
        try:
            return cls(**{**tensors, **facts})
        except (InputError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path}: {error}") from error


def mean_proba(heads: Sequence[Head], rows: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Average the probabilities of heads on several encoders, each given its own embeddings."""
    each = [head.predict_proba(X) for head, X in zip(heads, rows, strict=True)]
    return np.asarray(np.mean(each, axis=0))


def mean_index(heads: Sequence[Head], rows: Sequence[ArrayLike]) -> NDArray[np.intp]:
    """Return the position of the class with the largest mean probability."""
    if len(heads) == 1:  # probabilities that round to one are equal, and scores are not
        return heads[0].predict_index(rows[0])
    return np.asarray(mean_proba(heads, rows).argmax(axis=1))


def mean_decision(heads: Sequence[Head], rows: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Return the vote of a single head; of several, the centered logarithm of the mean probability."""
    if len(heads) == 1:
        return heads[0].decision_function(rows[0])
    logits = np.log(np.maximum(mean_proba(heads, rows), _TINY))
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))


def thresholds(
    heads: Sequence[Head], accept: float | None = None, coverage: float | None = None
) -> tuple[float | None, float | None]:
    """Return the least largest logit of accepted images, and the least probability of classes in a set.

    None for what is not given; raise if there are several heads, whose mean has no thresholds.
    """
    for name, share in (("accept", accept), ("coverage", coverage)):
        if share is not None:
            check_share(name, share)
    if accept is coverage is None:
        return None, None
    if len(heads) > 1:
        raise SettingError(
            "thresholds of rejection and coverage belong to one encoder, and the probabilities of "
            f"{len(heads)} are averaged: predict with one of them"
        )
    return (
        None if accept is None else heads[0].least_logit(accept),
        None if coverage is None else heads[0].least_probability(coverage),
    )


def check_share(name: str, value: object) -> None:
    """Raise a :class:`SettingError` unless a value is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise SettingError(f"{name} is {value!r}: give a number from 0 to 1")
    if not 0 <= float(value) <= 1:
        raise SettingError(f"{name} is {value}: give a number from 0 to 1")


def _check_positive(field_name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < np.inf:
        raise SettingError(f"{field_name} is {value!r}: give a positive number.")


def _further_array(
    name: str, values: ArrayLike, shape: tuple[int, ...], dtype: type[np.floating]
) -> NDArray[np.floating]:
    """Return an array of a head, in its dtype; -1 in the shape is any size but zero."""
    array = np.array(values, dtype=dtype, order="C")
    fits = len(shape) == array.ndim and all(
        n == m or (n == -1 and m) for n, m in zip(shape, array.shape, strict=True)
    )
    if not fits or not np.isfinite(array).all():
        raise EmbeddingError(
            f"The {name} must be finite and of the shape {shape}; got {array.shape}."
        )
    return array


def _check_names(class_names: tuple[str, ...], n_rows: int) -> None:
    """Check that there is one name per row, each once."""
    names: object = class_names
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise LabelError("class_names must be a tuple of strings.")
    if len(class_names) != n_rows:
        raise LabelError(f"{len(class_names)} class names for {n_rows} rows of weights.")
    if len(class_names) < 2:
        raise LabelError("A head needs at least two classes.")
    if twice := [name for name, count in Counter(class_names).items() if count > 1]:
        raise LabelError(f"Class names occur twice: {', '.join(map(repr, twice))}.")


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
    # A cache: it replaces a symbolic link instead of following it.
    write_bytes(path, save(dict(tensors), metadata={_METADATA_KEY: text}), follow=False)


def read_tensors(
    path: str | os.PathLike[str],
    form: str,
    names: frozenset[str],
    optional: frozenset[str] = frozenset(),
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote; `optional` arrays may be missing."""
    from safetensors import SafetensorError, safe_open

    open_regular(path).close()  # safetensors would wait for a pipe
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            fields = _read_fields(path, form, file.metadata())
            arrays = frozenset(file.keys())
            if not names <= arrays <= names | optional:
                raise FileFormatError(
                    f"{path}: holds the arrays {sorted(arrays)}, not {sorted(names)}."
                )
            return {name: file.get_tensor(name) for name in arrays}, fields
    except (SafetensorError, TypeError, AttributeError) as error:
        # The last two: a dtype that numpy does not have, such as bfloat16.
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
    actual, version = fields.pop("format"), fields.pop("schema_version")
    if actual != form:
        raise FileFormatError(f"{path}: holds a {actual!s:.60}, not a {form}.")
    if version != SCHEMA_VERSION:
        raise FileFormatError(
            f"{path}: has schema version {version!r:.60}, this promptboost reads {SCHEMA_VERSION}. If "
            "it was made by a later promptboost, upgrade with: pip install -U promptboost"
        )
    return fields


def embed(ensemble: PromptEnsemble, source: TextSource, encoder: Encoder | None = None) -> Head:
    """Embed the prompts with `source`, in the space of `encoder`; return the head, in float32."""
    encoder = source if isinstance(source, Encoder) else encoder
    return head_of(ensemble, _class_rows(ensemble, source, [ensemble.rounds])[0], encoder)


def head_of(ensemble: PromptEnsemble, weights: ArrayLike, encoder: Encoder | None) -> Head:
    """Build a head from precomputed class embeddings; all other fields come from the ensemble."""
    return Head(
        ensemble.class_names,
        np.asarray(weights, dtype=np.float32),
        rounds=len(ensemble),
        temperature=ensemble.temperature,
        encoder_id=encoder.id if encoder else None,
        encoder_fingerprint=encoder.fingerprint if encoder else None,
        ensemble_fingerprint=ensemble.fingerprint,
        logit_scale=ensemble.logit_scale_on(encoder),
    )


def staged_heads(ensemble: PromptEnsemble, source: TextSource, last: Head) -> Iterator[Head]:
    """Return the head after each round, in float64; the last one has residual and balance of `last`."""
    rows = _class_rows(ensemble, source, [[round_] for round_ in ensemble.rounds])
    # Rounded, so that the order in which the prompts were added up makes no difference.
    sums = np.cumsum(rows.astype(np.float32), axis=0, dtype=np.float64)
    text = replace(last, residual=None, text_scale=None, balance=None, calibration=None)
    for number, weights in enumerate(sums, start=1):
        head = last if number == len(ensemble) else text
        yield replace(head, weights=weights, rounds=number)


def _class_rows(
    ensemble: PromptEnsemble, source: TextSource, groups: Sequence[Sequence[Round]]
) -> NDArray[np.float64]:
    """Add up the mean embeddings of each class over each group of rounds: shape (groups, K, D)."""
    texts = ensemble.texts()
    embeddings = embed_texts(source, texts)
    index = {text: i for i, text in enumerate(texts)}
    rows = np.empty((len(groups), len(ensemble.class_names), embeddings.shape[1]))
    for (g, rounds), (k, name) in product(enumerate(groups), enumerate(ensemble.class_names)):
        weights: dict[int, float] = {}
        for round_ in rounds:
            bank = round_.banks[name]
            size = sum(bank.values())
            for prompt, copies in bank.items():
                weights[index[prompt]] = weights.get(index[prompt], 0.0) + copies / size
        shares = np.array(list(weights.values()))
        rows[g, k] = shares @ embeddings[list(weights)].astype(np.float64)
    return rows


# --- files of a folder ---------------------------------------------------------------------


def encoder_slug(encoder_id: str) -> str:
    """Turn the name of an encoder into a part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", encoder_id)


def head_file(encoder_id: str | None) -> str:
    """Return the name of the head file for one encoder, or for embeddings of an unknown one."""
    return f"head{'' if encoder_id is None else f'-{encoder_slug(encoder_id)}'}.safetensors"


def check_head_file(encoder_id: str, folder: Path | None = None) -> None:
    """Raise if the head file for this encoder would have too long a name, or path in `folder`."""
    name = head_file(encoder_id)
    if len(name) > _NAME_LENGTH:
        raise EncoderError(
            f"the name of the encoder has {len(encoder_id):,} characters, too many for the name of "
            f"its head file: {encoder_id[:60]}…"
        )
    if folder is not None and len(os.fsencode(folder.absolute() / name)) >= _PATH_LENGTH:
        raise SettingError(f"the path of the run is too long to hold its files: {folder}")


def read_residual_record(folder: Path) -> tuple[dict[str, str], dict[str, object]]:
    """Read digests and balances by name of the head file; empty if the record cannot be read."""
    path = folder / RESIDUAL_FILE
    try:
        record = read_json(path, error=FileFormatError)
    except FileFormatError:
        record = None
    if not isinstance(record, dict):
        return {}, {}
    heads = record.pop("heads", {})
    entries = heads.items() if isinstance(heads, dict) else ()
    balances = {name: entry.get("balance") for name, entry in entries if isinstance(entry, dict)}
    return {name: str(digest) for name, digest in record.items()}, balances


def write_head(folder: Path, head: Head) -> None:
    """Write a head into a folder, and record its residual and balance for :func:`stored_head`."""
    name = head_file(head.encoder_id)
    digests, balances = read_residual_record(folder)
    digests.pop(name, None)
    balances.pop(name, None)
    if head.residual is not None:
        digests[name] = head.residual_digest
    if head.residual is not None or head.balance is not None:
        balances[name] = None if head.balance is None else head.balance.to_record()
    # The record first: a residual without its digest in the record is not used.
    if digests or balances or (folder / RESIDUAL_FILE).exists():
        heads = {file: {"balance": balance} for file, balance in balances.items()}
        record: dict[str, Any] = {**digests, **({"heads": heads} if heads else {})}
        write_json(folder / RESIDUAL_FILE, record, follow=False)
    head.save(folder / name)

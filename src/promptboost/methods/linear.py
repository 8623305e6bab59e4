"""Classifiers that are one row and one intercept a class, and bound to the encoder of those rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import FileFormatError
from promptboost.methods.contract import Arrays, Fitted, Logits, Origin
from promptboost.methods.pictures import Pictures

__all__ = ["LinearClassifier"]


@dataclass(frozen=True)
class LinearClassifier(Fitted):
    """A row and an intercept for each class.

    Parameters
    ----------
    origin : Origin
        Method, classes and encoder.
    rows : array of float32, shape (K, D)
        Their products with a picture's row are logits: scales are in them already.
    intercepts : array of float32, shape (K,)
        Added to the products.
    details : mapping, optional
        What else the method wants to remember; ready for JSON.
    arrays : mapping of str to array, optional
        The same, as arrays: such as the vectors the rows were made with.

    Examples
    --------
    >>> from promptboost.methods.pictures import RowPictures
    >>> from promptboost.testing import FakeEncoder
    >>> encoder = FakeEncoder(dim=8)
    >>> rows = encoder.encode_texts(["red", "blue"])
    >>> fitted = LinearClassifier(Origin("x", ("fire", "ice"), encoder), rows, np.zeros(2))
    >>> fitted.predict(RowPictures({encoder.id: rows[:, None]})).tolist()
    [0, 1]
    """

    kind: ClassVar[str] = "linear"
    origin: Origin
    rows: NDArray[np.float32]
    intercepts: NDArray[np.float32]
    details: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def logits(self, pictures: Pictures) -> Logits:
        """Multiply and add."""
        scores = pictures.rows(self.origin.encoder) @ self.rows.T + self.intercepts
        return np.asarray(scores, dtype=np.float32)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Keep everything."""
        arrays = {"rows": self.rows, "intercepts": self.intercepts, **self.arrays}
        return {"details": dict(self.details)}, {
            name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()
        }

    @classmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Read everything."""
        others = {name: a for name, a in arrays.items() if name not in ("rows", "intercepts")}
        try:
            rows, intercepts = arrays["rows"], arrays["intercepts"]
            details = dict(fields["details"])
        except KeyError as error:
            raise FileFormatError(f"the file has no {error}") from error
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"the file's details cannot be read: {error}") from error
        n_classes = len(origin.class_names)
        if rows.shape != (n_classes, origin.encoder.dim) or intercepts.shape != (n_classes,):
            raise FileFormatError(
                f"the file's rows have the shape {rows.shape} and its intercepts "
                f"{intercepts.shape}, which do not fit {n_classes} classes and {origin.encoder.id}"
            )
        if not (np.isfinite(rows).all() and np.isfinite(intercepts).all()):
            raise FileFormatError("the file's rows or intercepts are not finite")
        return cls(origin, rows, intercepts, details, others)

r"""The balance: how loud a class may be that was added by words alone.

The words of a fit were chosen on images, and a residual beside them; the words of an added class were not.
Left to itself, it swallows the others where its sentences suit any image, and starves where the others
have a residual. So its row is moved along the mean of the images learned from, :math:`\mu`, until

* on the mean image it scores as the others do on average, and then
* by a *lift* further, found by pretending: had each class of the fit been added by words alone, the mean
  of the templates, and been moved like this, then 70 % of its images to learn from would have been
  recognized; or fewer, if the others would have lost more than 1.5 % of theirs.

:math:`\mu` and the lift are all that is kept of the images, so that a class can be added without them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

#: Share of the images of a class that would be recognized, had it been added by words alone,
RECOGNIZED = 0.7
#: unless the others would lose more than this share of theirs.
LOST = 0.015
# Images that lie further from the mean than this are hardly moved along it, and say nothing of the lift.
_NEAR = 0.2
# Square of the length of the mean below which images point into all directions, and none is theirs.
_SCATTERED = 0.02
_DIGITS = 7


@dataclass(frozen=True, eq=False)
class Balance:
    """What a head keeps of the images it was learned from, for classes that are added later.

    Attributes
    ----------
    class_names : tuple of str
        The classes that had images.
    center : array of shape (D,)
        The mean embedding of the images.
    text_lift, lift : float
        How far above the mean of the others an added class is put on the mean image, for the text alone
        and with the residual; in units of cosines with the text.

    Examples
    --------
    Of two classes that share a direction, the one that was added has more of it than the other.

    >>> balance = Balance(("cat",), np.array([1.0, 0.0]), text_lift=0.1, lift=0.1)
    >>> balance.rows(("cat", "dog"), np.array([[0.5, 0.1], [0.9, 0.4]]), lift=0.1)
    array([[0.5, 0.1],
           [0.6, 0.4]])
    """

    class_names: tuple[str, ...]
    center: Floats = field(repr=False)
    text_lift: float
    lift: float

    @classmethod
    def of(
        cls,
        class_names: tuple[str, ...],
        rows: Floats,
        labels: NDArray[np.integer],
        text: Floats,
        both: Floats,
        unseen: Floats,
    ) -> "Balance | None":
        """Measure it on images (n, D), class rows of the text and of text and residual, both (K, D).

        `unseen` are class rows of words that have seen no image. None if the images point into all
        directions: then a class cannot be moved towards all of them at once.
        """
        center = rows.mean(axis=0, dtype=np.float64)
        learned = np.unique(labels)
        if center @ center < _SCATTERED or len(learned) < 2:
            return None
        classes = np.searchsorted(learned, labels)
        lifts = [
            _lift(rows, classes, matrix[learned], unseen[learned], center)
            for matrix in (text, both)
        ]
        names = tuple(class_names[k] for k in learned.tolist())
        return cls(names, np.array([_short(x) for x in center]), *map(_short, lifts))

    def rows(self, class_names: tuple[str, ...], matrix: Floats, lift: float) -> Floats:
        """Return class rows in which those of added classes are in balance with the others."""
        learned = np.array([name in self.class_names for name in class_names])
        if learned.all() or not learned.any() or matrix.shape[1] != len(self.center):
            return matrix
        unit = self.center / (self.center @ self.center)
        scores = matrix @ self.center
        missing = np.where(learned, 0.0, scores[learned].mean() + lift - scores)
        return np.asarray(matrix + np.outer(missing, unit), dtype=matrix.dtype)

    def to_record(self) -> dict[str, Any]:
        """Return it as JSON can have it."""
        return {
            "class_names": list(self.class_names),
            "center": self.center.tolist(),
            "text_lift": self.text_lift,
            "lift": self.lift,
        }

    @classmethod
    def from_record(cls, record: object) -> "Balance | None":
        """Read what :meth:`to_record` gives; None for anything else: a stranger may have written it."""
        if not isinstance(record, Mapping):
            return None
        names, center = record.get("class_names"), record.get("center")
        lifts = [record.get(name) for name in ("text_lift", "lift")]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
        if not isinstance(center, list) or not all(_is_number(x) for x in (*center, *lifts)):
            return None
        mean = np.array(center, dtype=np.float64)
        if not _SCATTERED / 2 <= mean @ mean <= 1.01:
            return None
        return cls(tuple(names), mean, *map(float, lifts))  # type: ignore[arg-type]


def _lift(
    rows: Floats, labels: NDArray[np.integer], matrix: Floats, unseen: Floats, center: Floats
) -> float:
    """Return the lift that suits classes which pretend to be added, each to all the others."""
    along = rows @ center / (center @ center)
    near = along > _NEAR
    rows, labels, along = rows[near], labels[near], along[near]
    scores, own = rows @ matrix.T, (np.arange(len(labels)), labels)
    right = scores.argmax(axis=1) == labels
    start = (matrix.mean(axis=0) - unseen) @ center
    added = rows @ unseen.T + along[:, None] * start
    # The lift beyond which an image is taken from its class by each of the others, if that had it.
    taken = (scores[own][:, None] - added) / along[:, None]
    taken[own] = np.inf
    taken[~right] = np.inf
    scores[own] = -np.inf
    found = (scores.max(axis=1) - added[own]) / along
    allowed = int(LOST * (taken.size - len(labels)))
    most = float(np.partition(taken, allowed, axis=None)[allowed])
    return min(float(np.quantile(found, RECOGNIZED)), most)


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e6

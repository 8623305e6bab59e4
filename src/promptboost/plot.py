"""A display of a fitted classifier, drawn with matplotlib like those of scikit-learn.

For a confusion matrix there is :class:`sklearn.metrics.ConfusionMatrixDisplay`; the accuracy after each
round is ``pyplot.plot(list(estimator.staged_score(X, y)))``.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.baselines import expected_calibration_error, reliability
from promptboost.encoders.runtime import require_modules
from promptboost.errors import EmbeddingError, LabelError, SettingError
from promptboost.model.classifier import PromptClassifier

__all__ = ["ReliabilityDisplay"]

Columns = NDArray[np.int64]


class ReliabilityDisplay:
    """Accuracy by predicted probability.

    Parameters
    ----------
    probabilities : array-like of shape (n_images, n_classes)
        Predicted probabilities.
    labels : array-like of shape (n_images,)
        Column of the right class of each image.
    bins : int, default=10
        Number of bins of equal width.
    name : str, optional
        Name in the legend.

    Attributes
    ----------
    bins : tuple of ReliabilityBin
        The bins that contain images.
    calibration_error : float
        Mean distance from the diagonal over images, always in 15 bins.

    Examples
    --------
    >>> display = ReliabilityDisplay([[0.9, 0.1], [0.9, 0.1]], [0, 1]).plot()
    >>> [(bin.probability, bin.accuracy) for bin in display.bins]
    [(0.9, 0.5)]
    """

    def __init__(
        self,
        probabilities: ArrayLike,
        labels: ArrayLike,
        *,
        bins: int = 10,
        name: str | None = None,
    ) -> None:
        rows = np.asarray(probabilities, dtype=np.float64)
        columns = np.asarray(labels, dtype=np.int64)
        if rows.ndim != 2 or columns.shape != rows.shape[:1] or not len(columns):
            raise EmbeddingError(
                f"probabilities of shape {rows.shape} and labels of shape {columns.shape}: give a row "
                "of probabilities and a label for each of one or more images"
            )
        if type(bins) is not int or bins < 1:
            raise SettingError(f"bins is {bins!r}: give a whole number from 1 up")
        self.bins = reliability(rows, columns, bins)
        self.calibration_error = expected_calibration_error(rows, columns)
        self.name = name

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: ArrayLike, *, ax: Any = None, **options: Any
    ) -> Self:
        """Predict with a fitted estimator, or with what :func:`promptboost.load` returns, and plot."""
        loaded = isinstance(estimator, PromptClassifier)
        names = estimator.class_names if loaded else np.asarray(estimator.classes_).tolist()
        columns = _columns(np.asarray(y).tolist(), names)
        return cls(estimator.predict_proba(X), columns, **options).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw on `ax` or on a new figure, set `ax_` and `figure_`, and return self.

        Dots on the dashed line are perfectly calibrated. Bars show the share of images in each bin.
        """
        require_modules(["matplotlib"], "plot", "Displays")
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=(4.8, 4.8), layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        ax.axline((0, 0), slope=1, color="0.5", linestyle="--", linewidth=1)
        probabilities, accuracies, lows, highs, counts = np.array(
            [(bin.probability, bin.accuracy, bin.low, bin.high, bin.count) for bin in self.bins]
        ).T
        label = (self.name or "").replace("$", r"\$")  # not a formula
        (self.line_,) = ax.plot(probabilities, accuracies, marker="o", label=label, clip_on=False)
        heights, style = 0.15 * counts / counts.max(), {"alpha": 0.25, "linewidth": 0}
        color = self.line_.get_color()
        self.bars_ = ax.bar(lows, heights, highs - lows, align="edge", color=color, **style)
        from matplotlib.ticker import PercentFormatter

        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        ax.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
        ax.set(xlabel="predicted probability", ylabel="accuracy")
        if self.name:
            ax.legend(loc="upper left")
        return self


def _columns(labels: Sequence[Any], classes: Sequence[Any]) -> Columns:
    """Return the column of each label."""
    columns = {name: column for column, name in enumerate(classes)}
    unknown = [label for label in labels if label not in columns]
    if unknown:
        raise LabelError(f"there is no class {unknown[0]!r} to compare with")
    return np.array([columns[label] for label in labels], dtype=np.int64)

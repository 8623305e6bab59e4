"""Displays: what a fit reached and what it says, drawn with matplotlib in scikit-learn's manner."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.baselines.measures import expected_calibration_error, reliability
from promptboost.encoders.runtime import require_modules
from promptboost.errors import EmbeddingError, LabelError, SettingError, count
from promptboost.model.classifier import PromptClassifier
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.head import staged_heads

__all__ = ["BankDisplay", "ConfusionDisplay", "ReliabilityDisplay", "StagedAccuracyDisplay"]

Floats = NDArray[np.float64]
Columns = NDArray[np.int64]

_Names = Sequence[str] | None

#: Letters in a line of a sentence beside its bar.
_LINE = 56


class _Fitted(Protocol):
    """The parts of a fitted :class:`~promptboost.PromptBoostClassifier` that are drawn."""

    classes_: Any
    ensemble_: PromptEnsemble

    def predict_proba(self, X: Any) -> Floats: ...
    def staged_score(self, X: Any, y: ArrayLike) -> Any: ...


class _Display:
    """What all displays have: the axes and the figure they were drawn on."""

    ax_: Any
    figure_: Any

    def _axes(self, ax: Any, size: tuple[float, float] | None = None) -> Any:
        require_modules(["matplotlib"], "plot", "Displays")
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=size, layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        return ax


class _AnswersDisplay(_Display):
    """A display of answers beside the right ones."""

    @classmethod
    def from_estimator(
        cls, estimator: _Fitted, X: Any, y: ArrayLike, *, ax: Any = None, **options: Any
    ) -> Self:
        """Ask a fitted :class:`~promptboost.PromptBoostClassifier`, and plot."""
        truth = _places(np.asarray(y).tolist(), np.asarray(estimator.classes_).tolist())
        names = estimator.ensemble_.class_names
        return cls._of(estimator.predict_proba(X), truth, names, ax, **options)

    @classmethod
    def from_classifier(
        cls,
        classifier: PromptClassifier,
        images: Any,
        labels: Sequence[str],
        *,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Ask a :class:`~promptboost.PromptClassifier`, and plot."""
        names = classifier.class_names
        truth = _places(labels, names)
        return cls._of(classifier.predict_proba(images), truth, names, ax, **options)

    @classmethod
    def _of(
        cls, chances: Floats, truth: Columns, names: Sequence[str], ax: Any, **options: Any
    ) -> Self:
        """Plot the probabilities of images whose right columns are known."""
        raise NotImplementedError


class StagedAccuracyDisplay(_Display):
    """Accuracy after each round.

    Parameters
    ----------
    accuracies : array-like of shape (n_rounds,)
        The share that is right after round 1, 2, …
    name : str, optional
        What the legend calls them.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn; there after :meth:`plot`.
    line_ : matplotlib Line2D

    Examples
    --------
    >>> StagedAccuracyDisplay([0.5, 0.7, 0.8]).plot().ax_.get_xlabel()
    'rounds'
    """

    def __init__(self, accuracies: ArrayLike, *, name: str | None = None) -> None:
        self.accuracies = np.asarray(accuracies, dtype=np.float64)
        self.name = name
        if self.accuracies.ndim != 1 or not self.accuracies.size:
            raise SettingError("accuracies: give one number for each round")

    @classmethod
    def from_estimator(
        cls, estimator: _Fitted, X: Any, y: ArrayLike, *, ax: Any = None, name: str | None = None
    ) -> Self:
        """Measure a fitted :class:`~promptboost.PromptBoostClassifier` after each round, and plot."""
        return cls(list(estimator.staged_score(X, y)), name=name).plot(ax)

    @classmethod
    def from_classifier(
        cls,
        classifier: PromptClassifier,
        images: Any,
        labels: Sequence[str],
        *,
        ax: Any = None,
        name: str | None = None,
    ) -> Self:
        """Measure a :class:`~promptboost.PromptClassifier` after each round, and plot.

        Before the last round the words alone answer; a residual comes with the last.
        """
        if len(classifier.heads) > 1:
            raise SettingError("rounds are of one encoder: load the run with one encoder")
        truth = _places(labels, classifier.class_names)
        rows = classifier.embeddings(images)
        stages = staged_heads(classifier.ensemble, classifier.encoder, classifier.head)
        shares = [float(np.mean(head.predict_index(rows) == truth)) for head in stages]
        return cls(shares, name=name).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw on `ax`, or on a new figure, and return the display."""
        ax = self._axes(ax)
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        rounds = np.arange(1, len(self.accuracies) + 1)
        (self.line_,) = ax.plot(
            rounds,
            self.accuracies,
            marker="o" if len(rounds) < 30 else "",
            label=_safe(self.name or ""),
        )
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        ax.set(xlabel="rounds", ylabel="accuracy")
        if self.name:
            ax.legend()
        return self


class ReliabilityDisplay(_AnswersDisplay):
    """How often an answer is right, beside how probable it was said to be.

    Parameters
    ----------
    probabilities : array-like of shape (n_images, n_classes)
        Of each class for each image.
    labels : array-like of shape (n_images,)
        The right column of each image.
    bins : int, default=10
        Of equal width.
    name : str, optional
        What the legend calls them.

    Attributes
    ----------
    bins : tuple of ReliabilityBin
        Those with images.
    calibration_error : float
        Mean distance from the diagonal over images, in 15 bins whatever `bins` is.
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn; there after :meth:`plot`.

    Examples
    --------
    >>> display = ReliabilityDisplay([[0.9, 0.1], [0.9, 0.1]], [0, 1]).plot()
    >>> [(one.probability, one.accuracy) for one in display.bins]
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
        chances = np.asarray(probabilities, dtype=np.float64)
        truth = np.asarray(labels, dtype=np.int64)
        if chances.ndim != 2 or truth.shape != chances.shape[:1] or not len(truth):
            raise EmbeddingError(
                f"probabilities of shape {chances.shape} and labels of shape {truth.shape}: give a row "
                "of probabilities and a label for each of one or more images"
            )
        if type(bins) is not int or bins < 1:
            raise SettingError(f"bins is {bins!r}: give a whole number from 1 up")
        self.bins = reliability(chances, truth, bins)
        self.calibration_error = expected_calibration_error(chances, truth)
        self.name = name

    @classmethod
    def _of(
        cls, chances: Floats, truth: Columns, names: Sequence[str], ax: Any, **options: Any
    ) -> Self:
        return cls(chances, truth, **options).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw on `ax`, or on a new figure, and return the display.

        A dot on the dashed line says what is the case; bars below are the shares of images.
        """
        ax = self._axes(ax, (4.8, 4.8))
        from matplotlib.ticker import PercentFormatter

        ax.axline((0, 0), slope=1, color="0.5", linestyle="--", linewidth=1)
        sizes = np.array([one.count for one in self.bins])
        chances = [one.probability for one in self.bins]
        (self.line_,) = ax.plot(
            chances,
            [one.accuracy for one in self.bins],
            marker="o",
            label=_safe(self.name or ""),
            clip_on=False,
        )
        self.bars_ = ax.bar(
            [one.low for one in self.bins],
            0.15 * sizes / sizes.max(),
            [one.high - one.low for one in self.bins],
            align="edge",
            color=self.line_.get_color(),
            alpha=0.25,
            linewidth=0,
        )
        percent = PercentFormatter(1.0, decimals=0)
        ax.xaxis.set_major_formatter(percent)
        ax.yaxis.set_major_formatter(percent)
        ax.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
        ax.set(xlabel="probability of the answer", ylabel="share that is right")
        if self.name:
            ax.legend(loc="upper left")
        return self


class ConfusionDisplay(_AnswersDisplay):
    """Which class is taken for which.

    Of many classes only those that are mixed up most are drawn, and the title says so.

    Parameters
    ----------
    counts : array-like of shape (n_classes, n_classes)
        Number of images, by right class (rows) and answer (columns).
    class_names : sequence of str
        Names of the classes.

    Attributes
    ----------
    shown_ : list of str
        The classes that were drawn.
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn; there after :meth:`plot`.

    Examples
    --------
    >>> display = ConfusionDisplay([[3, 1, 0], [2, 2, 0], [0, 0, 4]], ["cat", "dog", "owl"])
    >>> display.plot(most=2).shown_
    ['cat', 'dog']
    """

    def __init__(self, counts: ArrayLike, class_names: Sequence[str]) -> None:
        self.counts = np.asarray(counts)
        self.class_names = tuple(map(str, class_names))
        size = len(self.class_names)
        if self.counts.shape != (size, size) or not size:
            raise LabelError(
                f"counts of shape {self.counts.shape} for {count(size, 'class', 'classes')}: give a row "
                "and a column for each class"
            )

    @classmethod
    def _of(
        cls, chances: Floats, truth: Columns, names: Sequence[str], ax: Any, **options: Any
    ) -> Self:
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(counts, (truth, chances.argmax(axis=1)), 1)
        return cls(counts, names).plot(ax, **options)

    def plot(self, ax: Any = None, *, most: int = 12) -> Self:
        """Draw on `ax`, or on a new figure, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw.
        most : int, default=12
            Of more classes than this, those with most wrong answers, given or received.
        """
        if type(most) is not int or most < 1:
            raise SettingError(f"most is {most!r}: give a whole number from 1 up")
        wrong = self.counts - np.diag(np.diag(self.counts))
        mixed = wrong.sum(axis=0) + wrong.sum(axis=1)
        kept = np.sort(np.argsort(-mixed, kind="stable")[:most])
        counts, names = self.counts[np.ix_(kept, kept)], [self.class_names[i] for i in kept]
        self.shown_ = names
        side = 2.2 + 0.42 * len(kept)
        ax = self._axes(ax, (side + 0.6, side))
        # Right answers are many and no news: the shades are those of the wrong ones.
        shades = np.where(np.eye(len(kept), dtype=bool), 0, counts)
        self.image_ = ax.imshow(shades, cmap="Oranges", vmin=0, vmax=max(1, 1.6 * shades.max()))
        places = range(len(kept))
        self.texts_ = [
            ax.text(k, i, f"{counts[i, k]}", ha="center", va="center", color="0.15", size="small")
            for i in places
            for k in places
            if counts[i, k]
        ]
        labels = [_safe(name) for name in names]
        ax.set_xticks(places, labels, rotation=45, ha="right", rotation_mode="anchor")
        ax.set_yticks(places, labels)
        ax.set(xlabel="answer", ylabel="label")
        if len(kept) < len(self.class_names):
            ax.set_title(
                f"the {len(kept)} of {len(self.class_names)} classes that are mixed up most",
                size="small",
            )
        return self


class BankDisplay(_Display):
    """The sentences of some classes, and the part that each has in the score of its class.

    Parameters
    ----------
    banks : mapping of str to mapping of str to float
        Class name → {sentence: part}, as :meth:`PromptEnsemble.prompts` has them.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn; there after :meth:`plot`.
    bars_ : matplotlib BarContainer

    Examples
    --------
    >>> display = BankDisplay({"owl": {"an owl at night.": 0.7, "a bird.": 0.3}}).plot()
    >>> [label.get_text() for label in display.ax_.get_yticklabels()]
    ['owl', 'an owl at night.', 'a bird.']
    """

    def __init__(self, banks: Mapping[str, Mapping[str, float]]) -> None:
        self.banks = {name: dict(bank) for name, bank in banks.items()}
        if not any(self.banks.values()):
            raise SettingError("banks: give one class with a sentence, or more")

    @classmethod
    def from_estimator(cls, estimator: _Fitted, classes: _Names = None, **options: Any) -> Self:
        """Plot sentences of a fitted :class:`~promptboost.PromptBoostClassifier`, as of its ensemble."""
        return cls.from_ensemble(estimator.ensemble_, classes, **options)

    @classmethod
    def from_classifier(
        cls, classifier: PromptClassifier, classes: _Names = None, **options: Any
    ) -> Self:
        """Plot sentences of a :class:`~promptboost.PromptClassifier`, as of its ensemble."""
        return cls.from_ensemble(classifier.ensemble, classes, **options)

    @classmethod
    def from_ensemble(
        cls,
        ensemble: PromptEnsemble,
        classes: _Names = None,
        *,
        ax: Any = None,
        most: int = 5,
    ) -> Self:
        """Plot sentences of a :class:`~promptboost.PromptEnsemble`.

        Parameters
        ----------
        ensemble : PromptEnsemble
            The text.
        classes : sequence of str, optional
            Names of the classes to show; by default the first four.
        ax : matplotlib Axes, optional
            Where to draw.
        most : int, default=5
            Sentences of each class, the heaviest first.
        """
        names = ensemble.class_names[:4] if classes is None else classes
        if isinstance(names, str):
            names = [names]
        return cls({name: ensemble.prompts(name) for name in names}).plot(ax, most=most)

    def plot(self, ax: Any = None, *, most: int = 5) -> Self:
        """Draw on `ax`, or on a new figure, and return the display."""
        if type(most) is not int or most < 1:
            raise SettingError(f"most is {most!r}: give a whole number from 1 up")
        places: list[float] = []
        parts: list[float] = []
        labels: list[str] = []
        headings: list[int] = []
        place = 0.0
        for name, bank in self.banks.items():
            headings.append(len(labels))
            lines = [(name, 0.0), *sorted(bank.items(), key=lambda pair: -pair[1])[:most]]
            for text, part in lines:
                wrapped = fill(text, _LINE)
                # A sentence of two lines takes the room of two.
                high = 1 + 0.75 * wrapped.count("\n")
                places.append(place + high / 2)
                parts.append(part)
                labels.append(_safe(wrapped))
                place += high
            place += 0.4
        ax = self._axes(ax, (8.0, 0.9 + 0.27 * place))
        from matplotlib.ticker import PercentFormatter

        self.bars_ = ax.barh(places, parts, height=0.7)
        ax.set_yticks(places, labels, size="small")
        for position in headings:
            ax.get_yticklabels()[position].set_fontweight("bold")
        ax.set_ylim(place, 0)
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right"]].set_visible(False)
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        ax.set_xlabel("part in the score of the class")
        return self


def _safe(text: str) -> str:
    r"""Return a text that matplotlib draws as it is: between two plain dollars it would be a formula.

    Examples
    --------
    >>> _safe("from $1 to $2")
    'from \\$1 to \\$2'
    """
    return text.replace("$", r"\$")


def _places(labels: Sequence[Any], classes: Sequence[Any]) -> Columns:
    """Return the column of each label."""
    columns = {name: column for column, name in enumerate(classes)}
    strange = [label for label in labels if label not in columns]
    if strange:
        raise LabelError(f"there is no class {strange[0]!r} to compare with")
    return np.array([columns[label] for label in labels], dtype=np.int64)

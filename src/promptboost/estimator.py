"""PromptBoostClassifier: promptboost as a scikit-learn classifier.

Besides this file, only the logistic-regression baseline in ``methods/logistic.py`` imports scikit-learn.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from promptboost.boosting import BoostSettings
from promptboost.boosting.gradient.compose import GradientSettings
from promptboost.data.memory import as_images, holds_images
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, text_source
from promptboost.errors import DataError, EncoderError, LabelError, SettingError
from promptboost.model import PromptEnsemble
from promptboost.model.head import Head
from promptboost.model.vectors import EmbeddedRounds
from promptboost.pool import PromptPool
from promptboost.pool.descriptions import sentences_by_class
from promptboost.training import fit_ensemble
from promptboost.training.examples import (
    Examples,
    RowSpace,
    Words,
    checked_views,
    prototypes,
    sentences,
)

__all__ = ["PromptBoostClassifier"]

Floats = NDArray[np.float64]
Labels = NDArray[Any]
# Example → the example it was merged into, and its part of that one's weight.
Parts = dict[str, tuple[str, float]]


class PromptBoostClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier made of sentences, chosen by boosting.

    Each round composes a weak classifier: a bank of prompts for every class, whose score is the mean
    cosine with the image. The rounds together are a :class:`~promptboost.PromptEnsemble`: plain
    text, which :meth:`transfer` moves to another encoder.

    **The composer** decides which prompts a round takes. "gradient" gives every class the same number
    of copies and moves them from prompt to prompt as lowers the logistic loss most, so that one
    round is enough; "greedy", the paper's, appends copies as lowers the number of errors most.

    **With an encoder**, X holds images, or embeddings that this encoder made of images. The
    prompts come from the class names, which are the labels as text, and from `pool`.

    **Without an encoder** there is nothing that could embed a sentence, and X is any matrix of
    numbers. Then *prototypes* stand in for sentences: the training rows of a class are its prompts,
    called "example 17" after their position in X, and their average is its template. It is the
    same algorithm, and the result can be read and checked, but not moved elsewhere.

    Parameters
    ----------
    encoder : Encoder, str, mapping, callable or None, default=None
        An encoder or its name (see :func:`promptboost.load_encoder`); or what gives the rows of texts
        and cannot embed images: a mapping from text to row, a function of a list of texts.
        scikit-learn copies the parameters of estimators it clones, so for a search or a
        cross-validation a name is better than an encoder, which is copied with its weights.
    pool : PromptPool, mapping or None, default=None
        The prompts to choose from. A mapping has sentences by class, which join the filled templates
        (see :func:`promptboost.pool.build_pool`); without it, there are the templates alone, and
        of classes it lacks a warning tells. A PromptPool may have more classes than y.
    templates : sequence of str or None, default=None
        Sentences with ``{}`` where the class name goes, where `pool` is not a PromptPool; ours by
        default.
    composer : {"gradient", "greedy"}, default="gradient"
        What composes a round.
    logit_scale : float or None, default=None
        What the gradient composer multiplies cosines with: higher trusts the examples more, and the
        pool less. None chooses it from the training examples.
    n_rounds : int, default=1
        Number of weak classifiers.
    views_per_round : int, optional
        Views of each image that a round sees, by default all; 0 shows it the images themselves,
        as is always done with embeddings unless :meth:`fit` is given their views.
    n_views : int, default=8
        Views of each image to embed. Rounds draw from them, none twice before all were seen.
    temperature : float, default=1.0
        Of the softmax over mean cosines.
    algorithm : {"samme.r", "samme"}, default="samme.r"
        Real-valued votes, or one hard vote a round.
    max_copies : int or None, default=None
        Largest number of copies of a prompt the greedy composer appends at once.
    penalty : bool, default=True
        Whether the greedy composer compares prompts by the change of the error per copy, or by the
        change alone.
    patience : int or None, default=None
        Stop after this many rounds in a row that left no error.
    random_state : int, RandomState or None, default=None
        Decides the views and the ties between templates. An int is used as the seed itself.

    Attributes
    ----------
    classes_ : ndarray of shape (K,)
        The labels; in ``ensemble_`` they are called by their text.
    ensemble_ : PromptEnsemble
        The fitted thing.
    head_ : LinearHead or VotingHead
        The same embedded, in single precision, to save or serve.
    n_iter_ : int
        Number of rounds.
    round_errors_ : ndarray of shape (n_iter_,)
        Weighted error of each round on the views it was composed on.
    logit_scale_ : float or None
        What the gradient composer multiplied cosines with; None for the greedy one.
    scale_choice_ : str or None
        Why, in words, where it was chosen.
    sample_weight_ : ndarray of shape (n_samples,)
        Boosting weights at the end of the fit: the examples that stayed hard.
    n_features_in_ : int
        Columns of X where it is a matrix; with an encoder, the length of its embeddings.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X had some.

    Notes
    -----
    Rows of X are scaled to length one. Without an encoder they first get one more coordinate, the
    same for all, as an intercept: see :class:`promptboost.training.examples.RowSpace`.

    Without an encoder, the order of the rows does not matter, and a weight of two is an example given
    twice: equal examples are put together before anything else is done.

    The defaults are those of ``promptboost fit``. The paper's setting is ``composer="greedy",
    n_rounds=50, views_per_round=4, n_views=20``.

    A pickle holds the name of an encoder, but an encoder with its weights. To keep what was learnt,
    save ``ensemble_``, which is text, or ``head_``.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> X = [Image.new("RGB", (8, 8), colour) for colour in ("red", "tomato", "blue", "navy")]
    >>> y = ["fire", "fire", "ice", "ice"]
    >>> sentences = {"fire": ["it is red", "flames"], "ice": ["it is blue", "a glacier"]}
    >>> classifier = PromptBoostClassifier(FakeEncoder(64), sentences, random_state=0)
    >>> classifier.fit(X, y).predict([Image.new("RGB", (8, 8), "darkred")])
    array(['fire'], dtype='<U4')
    >>> classifier.transfer(FakeEncoder(64, seed=1)).score(X, y)
    1.0
    """

    def __init__(
        self,
        encoder: TextSource | str | None = None,
        pool: PromptPool | Mapping[str, Sequence[str]] | None = None,
        *,
        templates: Sequence[str] | None = None,
        composer: Literal["gradient", "greedy"] = "gradient",
        logit_scale: float | None = None,
        n_rounds: int = 1,
        views_per_round: int | None = None,
        n_views: int = 8,
        temperature: float = 1.0,
        algorithm: Literal["samme.r", "samme"] = "samme.r",
        max_copies: int | None = None,
        penalty: bool = True,
        patience: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.encoder = encoder
        self.pool = pool
        self.templates = templates
        self.composer = composer
        self.logit_scale = logit_scale
        self.n_rounds = n_rounds
        self.views_per_round = views_per_round
        self.n_views = n_views
        self.temperature = temperature
        self.algorithm = algorithm
        self.max_copies = max_copies
        self.penalty = penalty
        self.patience = patience
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # Paths of images are strings; they take an encoder that can look at them.
        tags.input_tags.string = isinstance(self.encoder, str | Encoder)
        return tags

    # --- fitting -------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        views: ArrayLike | None = None,
    ) -> Self:
        """Choose prompts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or sequence of images
            Embeddings, or with an encoder paths, PIL images, arrays of pixels or bytes of files.
        y : array-like of shape (n_samples,)
            Labels. With an encoder, their text is the name of the class in prompts.
        sample_weight : array-like of shape (n_samples,), optional
            Weights that boosting starts with. Examples of weight zero are left out.
        views : array-like of shape (n_samples, n_views, n_features), optional
            Where X has embeddings, those of views of the same images.

        Returns
        -------
        self
        """
        source = text_source(self.encoder)
        settings = self._boost_settings()
        given = self._examples(X, y, sample_weight, views, source, settings)
        names = [str(label) for label in self.classes_]
        examples, parts = given.weighted(names), None
        if source is None:  # images keep their names and their order, as on the command line
            examples, parts = _merged(examples)
        words, self._space = self._words(names, examples, source)
        if examples.views is None:
            settings = replace(settings, views_per_round=0)
        elif self.views_per_round is None:
            settings = replace(settings, views_per_round=examples.views.shape[1])
        ensemble = fit_ensemble(
            examples.shots(self._space),
            words.grid,
            words.texts,
            settings,
            image_ids=examples.ids,
            weights=examples.weights,
            encoder_id=source.id if isinstance(source, Encoder) else None,
            encoder_fingerprint=source.fingerprint if isinstance(source, Encoder) else None,
            encoder_scale=source.logit_scale if isinstance(source, Encoder) else None,
        )
        weights = _divided(ensemble.sample_weights, parts)
        self.sample_weight_ = np.array([weights.get(i, 0.0) for i in given.ids])
        self._take(ensemble, words.source)
        return self

    def _examples(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None,
        views: ArrayLike | None,
        source: TextSource | None,
        settings: BoostSettings,
    ) -> Examples:
        """Check X and y as scikit-learn does, learn the classes, and embed what are images."""
        if not holds_images(X):
            rows, y = validate_data(self, X, y, dtype="numeric")
            rows = np.asarray(rows, dtype=np.float64)
            labels, weights = self._checked_targets(y, sample_weight, rows)
            ids = tuple(map(str, range(len(rows))))
            return Examples(rows, labels, ids, weights, checked_views(views, rows))
        if views is not None:
            raise SettingError("views go with embeddings; X holds images, whose views are drawn")
        check_consistent_length(X, y)
        images = as_images(X)
        labels, weights = self._checked_targets(column_or_1d(y, warn=True), sample_weight, X)
        if self.n_views < settings.views_per_round:
            raise SettingError(
                f"n_views is {self.n_views}: too few to see {settings.views_per_round} a round; "
                f"set n_views={settings.views_per_round} or views_per_round={self.n_views}"
            )
        wanted = self.n_views if settings.views_per_round else 0
        embedded = _embed(images, source, views=wanted)
        rows, seen = embedded[:, 0], embedded[:, 1:] if wanted else None
        self.n_features_in_ = rows.shape[1]
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit on a data frame
        ids = tuple(image.id for image in images)
        return Examples(rows, labels, ids, weights, seen)

    def _checked_targets(
        self, y: Labels, sample_weight: ArrayLike | None, rows: Any
    ) -> tuple[NDArray[np.int64], Floats | None]:
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise LabelError(
                f"y has one class only, {str(self.classes_[0])!r}; at least two are needed"
            )
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, rows, dtype=np.float64)
        return labels.astype(np.int64), weights

    def _gradient_settings(self) -> GradientSettings | None:
        """Return what the gradient composer is asked; None for the greedy one."""
        if self.composer not in ("gradient", "greedy"):
            raise SettingError(f"composer is {self.composer!r}: give 'gradient' or 'greedy'")
        for name, asked, other in (
            ("logit_scale", self.logit_scale is not None, "gradient"),
            ("max_copies", self.max_copies is not None, "greedy"),
            ("penalty", not self.penalty, "greedy"),
        ):
            if asked and self.composer != other:
                raise SettingError(
                    f"{name} is {getattr(self, name)!r}, but the {self.composer} composer has none: "
                    f"leave it out or set composer={other!r}"
                )
        if self.composer == "greedy":
            return None
        scale: object = self.logit_scale
        if scale is None:
            return GradientSettings()
        if isinstance(scale, bool) or not isinstance(scale, Real):
            raise SettingError(f"logit_scale is {scale!r}: give a positive number, or None")
        return GradientSettings(float(scale))

    def _boost_settings(self) -> BoostSettings:
        gradient = self._gradient_settings()
        for name in ("n_rounds", "views_per_round", "n_views", "max_copies", "patience"):
            value = getattr(self, name)
            if value is None and name in ("views_per_round", "max_copies", "patience"):
                continue
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise SettingError(f"{name} is {value!r}: give a whole number")
        if not isinstance(self.temperature, Real):
            raise SettingError(f"temperature is {self.temperature!r}: give a positive number")
        # A number is the seed itself, so that the command line and this give the same text.
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        seen = self.views_per_round
        return BoostSettings(
            rounds=int(self.n_rounds),
            views_per_round=int(self.n_views if seen is None else seen),
            temperature=float(self.temperature),
            algorithm=self.algorithm,
            seed=int(seed),
            max_copies=self.max_copies,
            penalty=self.penalty,
            patience=self.patience,
            gradient=gradient,
        )

    def _words(
        self, names: list[str], examples: Examples, source: TextSource | None
    ) -> tuple[Words, RowSpace]:
        """Return the pool, and the space in which it and the examples are compared."""
        if source is not None:
            words = sentences(names, source, self.pool, self.templates)
            _warn_of_missing_sentences(names, self.pool)
            return words, RowSpace()
        if self.pool is not None or self.templates is not None:
            raise SettingError(
                "pool and templates are sentences, which need an encoder: set encoder"
            )
        space = RowSpace.around(examples.rows, examples.relative_weights())
        return prototypes(names, examples, space), space

    def _take(self, ensemble: PromptEnsemble, words: TextSource) -> None:
        """Set all that follows from an ensemble and what embeds its texts."""
        self.ensemble_ = ensemble
        self.n_iter_ = len(ensemble)
        self.round_errors_ = np.array([item.error for item in ensemble.rounds])
        self.logit_scale_ = ensemble.settings.get("logit_scale")
        self.scale_choice_ = ensemble.settings.get("scale_choice")
        self._embedded = EmbeddedRounds.of(ensemble, words)
        self.head_ = self._embedded.head
        self._final = self._embedded.final()

    def transfer(self, encoder: Encoder | str) -> "PromptBoostClassifier":
        """Move the classifier to another encoder: embed the same text with it.

        Parameters
        ----------
        encoder : Encoder, str, mapping or callable
            As in the constructor, but not None.

        Returns
        -------
        PromptBoostClassifier
            A new one, fitted; this one stays as it is.
        """
        check_is_fitted(self)
        words = text_source(encoder)
        if words is None or self._space.constant is not None:
            raise SettingError(
                "encoder is None: give the encoder to transfer to"
                if words is None
                else "fitted on prototypes, which are rows of X: only sentences can be transferred"
            )
        other = type(self)(**{**self.get_params(deep=False), "encoder": encoder})
        other.classes_ = self.classes_
        other.sample_weight_ = self.sample_weight_
        other._space = self._space
        other._take(self.ensemble_, words)
        other.n_features_in_ = other.head_.dim
        return other

    # --- predicting ----------------------------------------------------------------------------

    def predict(self, X: Any) -> Labels:
        """Return the label of the class of the largest vote.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or sequence of images
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        rows = self._rows(X)
        return self._labels(self._final, rows)

    def predict_proba(self, X: Any) -> Floats:
        """Turn the vote into probabilities with a softmax; they are not calibrated.

        Returns
        -------
        ndarray of shape (n_samples, K)
        """
        rows = self._rows(X)
        return self._final.predict_proba(rows)

    def decision_function(self, X: Any) -> Floats:
        """Return the boosting vote.

        Returns
        -------
        ndarray of shape (n_samples, K), or (n_samples,) for two classes
            Centred over the classes. For two, the vote for the second minus that for the first.
        """
        rows = self._rows(X)
        return _votes(self._final, rows)

    def staged_predict(self, X: Any) -> Iterator[Labels]:
        """Return :meth:`predict` after each round."""
        rows = self._rows(X)
        for head in self._embedded.stages():
            yield self._labels(head, rows)

    def staged_decision_function(self, X: Any) -> Iterator[Floats]:
        """Return :meth:`decision_function` after each round."""
        rows = self._rows(X)
        for head in self._embedded.stages():
            yield _votes(head, rows)

    def staged_score(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Iterator[float]:
        """Return the accuracy after each round.

        Examples
        --------
        >>> X, y = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.2]], ["up", "up", "right", "right"]
        >>> classifier = PromptBoostClassifier(n_rounds=3).fit(X, y)
        >>> list(classifier.staged_score(X, y))
        [1.0, 1.0, 1.0]
        """
        for labels in self.staged_predict(X):
            yield float(accuracy_score(y, labels, sample_weight=sample_weight))

    def _labels(self, head: Head, rows: Floats) -> Labels:
        return np.asarray(self.classes_[head.predict_index(rows)])

    def _rows(self, X: Any) -> Floats:
        """Check X, embed what are images, and give rows of length one."""
        check_is_fitted(self)
        if not holds_images(X):
            rows = validate_data(self, X, reset=False, dtype="numeric")
            return self._space.unit(np.asarray(rows, dtype=np.float64))
        source = text_source(self.encoder)
        rows = _embed(as_images(X), source, views=0)[:, 0]
        if isinstance(source, Encoder) and source.fingerprint != self.head_.encoder_fingerprint:
            raise EncoderError(
                f"fitted with {self.head_.encoder_id!r}, but encoder is {source.id!r} now: use transfer"
            )
        return self._space.unit(rows)


def _warn_of_missing_sentences(
    names: list[str], pool: PromptPool | Mapping[str, Sequence[str]] | None
) -> None:
    """Name the classes that sentences by class leave out: a slip of spelling looks the same."""
    if not pool or isinstance(pool, PromptPool):
        return
    described, _ = sentences_by_class(names, pool)
    missing = [name for name in names if name not in described]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        warnings.warn(
            f"pool has no sentences for {', '.join(map(repr, missing[:5]))}{more}: only templates "
            "are there to choose from. Add sentences under these names, spelled as in y",
            UserWarning,
            stacklevel=4,  # whoever called fit
        )


def _merged(examples: Examples) -> tuple[Examples, Parts]:
    """Put examples in the order of their values, and equal ones together with their weights added.

    Then it decides nothing in which order examples were given, or whether one was given twice or with
    twice the weight: neither a sum of floats that is rounded, nor who is set aside with whom when the
    logit scale is chosen. Which merged example each one went into, and its part of that, is told too.
    """
    n = len(examples.rows)
    values = [examples.labels[:, None], examples.rows]
    if examples.views is not None:
        values.append(examples.views.reshape(n, -1))
    _, first, into = np.unique(
        np.concatenate(values, axis=1), axis=0, return_index=True, return_inverse=True
    )
    into = into.reshape(n)
    given = examples.relative_weights()
    total = np.bincount(into, weights=given).astype(np.float64)
    merged = Examples(
        examples.rows[first],
        examples.labels[first],
        tuple(examples.ids[i] for i in first),
        None if examples.weights is None and len(first) == n else total,
        None if examples.views is None else examples.views[first],
    )
    own = zip(examples.ids, into, given / total[into], strict=True)
    return merged, {name: (merged.ids[i], float(part)) for name, i, part in own}


def _divided(weights: Mapping[str, float], parts: Parts | None) -> Mapping[str, float]:
    """Return each example its part of the weight of the one it was merged into."""
    if parts is None:
        return weights
    return {name: part * weights[merged] for name, (merged, part) in parts.items()}


def _votes(head: Head, rows: Floats) -> Floats:
    votes = head.decision_function(rows)
    return np.asarray(votes[:, 1] - votes[:, 0]) if votes.shape[1] == 2 else votes


def _embed(images: Any, source: TextSource | None, views: int) -> Floats:
    if not isinstance(source, Encoder):
        raise DataError(
            "X holds images, and there is no encoder to embed them: set encoder to an encoder or "
            "to the name of one, or give embeddings"
        )
    return Embedder(source, progress=False).images(images, views=views).astype(np.float64)

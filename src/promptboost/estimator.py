"""PromptBoostClassifier and ImageEmbedder: promptboost for scikit-learn."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from promptboost.config import AUTO, BoostConfig, FitConfig, checked, documented, settings_of
from promptboost.data.dataset import Dataset, check_labels, warn_of_conflicting_labels
from promptboost.data.memory import as_images, holds_images, unit_embeddings
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, members_of
from promptboost.encoders.group import EncoderGroup
from promptboost.encoders.registry import check_trusted
from promptboost.errors import DataError, EncoderError, LabelError, SettingError, a_type
from promptboost.model import PromptEnsemble
from promptboost.model.classifier import PromptClassifier, load
from promptboost.model.decisions import ClassPriors, adjusted_proba, decided, sets_of_classes
from promptboost.model.head import Head, mean_decision, mean_index, staged_heads
from promptboost.progress import ProgressBars, is_interactive
from promptboost.training.examples import (
    Cache,
    Examples,
    RowSpace,
    check_embeddings,
    checked_views,
    embedder_of,
    image_embedder,
)
from promptboost.training.pool_rows import (
    PoolLike,
    Source,
    embed_pool,
    names_of_classes,
    noun_phrases,
    prototypes,
)

if TYPE_CHECKING:
    from promptboost.model.prediction import Explanation

Floats = NDArray[np.float64]
Labels = NDArray[Any]

# The settings of a fit that are parameters of the constructor, by the names of scikit-learn.
_PARAMETERS = {
    "composer": "composer",
    "rounds": "n_rounds",
    "views": "n_views",
    "residual": "residual",
    "seed": "random_state",
}
#: The settings that the parameter `settings` may hold.
_SETTINGS = tuple(
    name
    for name in ("concatenate", "view_scale", *settings_of(BoostConfig))
    if name not in _PARAMETERS
)


class _NoSentencesError(SettingError, AttributeError):
    """There is no text to save or transfer; an AttributeError, so that `hasattr` works on `classifier_`."""


class PromptBoostClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier made of sentences, chosen by boosting.

    Each round composes a bank of prompts for every class, whose score is the mean cosine with the image.
    The rounds together are a :class:`~promptboost.PromptEnsemble`: plain text, which :meth:`transfer`
    moves to another encoder. A residual, a matrix that stays with its encoder, adds what the sentences do
    not express; ``residual=False`` predicts by the text alone.

    **Images.** X holds images, or embeddings of images by the `encoder`. The prompts come from the class
    names, which are the labels or `class_names`, and from `pool`.

    **Any other numbers.** Without an encoder, or with the default one, X can be any numeric matrix.
    *Prototypes* then replace sentences: the training rows of a class are its prompts, named "example 17"
    after their position in X, and their average is its template. The result can be read and checked, but
    not moved to an encoder.

    Parameters
    ----------
    encoder : Encoder, str, list, mapping, callable or None, default="auto"
        An encoder or its name (see :func:`promptboost.load_encoder`). ``"auto"`` is the one that the
        command line uses; no encoder is loaded where X is a numeric matrix. A mapping from text to
        embedding, or a function of a list of texts, is enough for embeddings. On a list of encoders, the
        text is learned on all at once, from images, so that it keeps more of its gain on others; the
        first one predicts, or all of them with `average`. For a grid search, a name is better than an
        encoder, which scikit-learn would copy with its weights.
    pool : PromptPool, mapping, path-like or None, default=None
        The prompts to choose from. A mapping, or a file that ``promptboost fit --prompts`` reads, holds
        sentences by class, which join the filled templates; by default there are the templates alone. A
        warning names the classes without sentences. A PromptPool may have more classes than y.
    templates : sequence of str, "own", "clip" or None, default=None
        Sentences with ``{}`` for the class name, where `pool` is not a PromptPool; by default those of
        promptboost.
    class_names : sequence or mapping, optional
        The names of the classes in prompts, by label; a sequence names the labels 0, 1, and so on. By
        default the labels are the names, and must be strings where there is an encoder. A value of the
        mapping that begins with an article, as in ``{{"pug": "a pug dog"}}``, is a noun phrase: templates
        are filled with it, and the class keeps its label as its name.
    {parameters}
    average : bool, default=False
        With a list of encoders, average their probabilities. That is a little more accurate, and each
        image is embedded by all of them.
    settings : mapping of str to value, optional
        Further settings of the fit, by the names that the command line and TOML files use:
        {settings}. See :doc:`/reference/settings`.
    cache : bool or path-like, default=True
        Where embeddings are stored: in the user's cache, nowhere, or in a folder.
    random_state : int, RandomState or None, default=None
        Decides which crops a round sees, and ties. An int is the seed of the command line.

    Attributes
    ----------
    classes_ : ndarray of shape (K,)
        The labels; ``ensemble_`` has their names.
    ensemble_ : PromptEnsemble
        The fitted text.
    classifier_ : PromptClassifier
        The text with its encoder.
    head_ : Head
        The embedded text in single precision, to save or serve; on the first of several encoders.
    n_iter_, round_errors_ : int and ndarray of shape (n_iter_,)
        Number of rounds, and the weighted error of each on the views it was composed on.
    logit_scale_, scale_choice_ : float and str, or None
        The factor on cosines of the gradient composer, and how it was chosen.
    sample_weight_ : ndarray of shape (n_samples,)
        Boosting weights at the end of the fit; hard examples have large ones.
    n_features_in_ : int
        Columns of X where it is a matrix; with an encoder, the length of its embeddings.
    feature_names_in_ : ndarray of shape (D,)
        Names of the columns, where X had some.

    Notes
    -----
    Rows of X are scaled to length one. Embeddings must not be all zero, and a warning is shown if their
    lengths are far from one. Without an encoder, rows first get one more coordinate, the same for all,
    as an intercept; the order of the rows does not matter, and a weight of two is an example given twice.

    The defaults are those of ``promptboost fit``. The paper's setting is ``composer="greedy",
    n_rounds=50, n_views=20, residual=False, settings={"views_per_round": 4}``.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> X = [Image.new("RGB", (8, 8), color) for color in ("red", "tomato", "blue", "navy")]
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
        encoder: TextSource | str | Sequence[str | Encoder] | None = AUTO,
        pool: PoolLike | None = None,
        *,
        templates: Sequence[str] | None = None,
        class_names: Sequence[str] | Mapping[Any, str] | None = None,
        composer: Literal["gradient", "greedy"] = "gradient",
        n_rounds: int = 1,
        n_views: int | None = None,
        residual: bool = True,
        average: bool = False,
        settings: Mapping[str, Any] | None = None,
        cache: Cache = True,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.encoder = encoder
        self.pool = pool
        self.templates = templates
        self.class_names = class_names
        self.composer = composer
        self.n_rounds = n_rounds
        self.n_views = n_views
        self.residual = residual
        self.average = average
        self.settings = settings
        self.cache = cache
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # Paths of images are strings; they need an encoder of images.
        tags.input_tags.string = isinstance(self.encoder, str | Encoder | list | tuple)
        return tags

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        views: ArrayLike | None = None,
        classes: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Choose prompts.

        Progress bars are shown in notebooks and at the Python prompt, not in scripts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or sequence of images
            Embeddings, or with an encoder paths, PIL images, arrays of pixels or bytes of files.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), optional
            Initial weights of the examples. Examples of weight zero are not used.
        views : array-like of shape (n_samples, n_views, n_features), optional
            Where X has embeddings, those of views of the same images.
        classes : array-like of shape (n_classes,), optional
            All labels, if some are not in y: their classes are predicted by their sentences alone.
        groups : array-like of shape (n_samples,), optional
            What each image shows, if several images show the same thing, such as photographs of one
            animal. In cross-validation they are held out together; probabilities are too high otherwise.
        """
        from promptboost.training import Trainer  # numba takes half a second

        # Without images or sentences there is nothing for the default encoder to embed.
        auto = isinstance(self.encoder, str) and self.encoder == AUTO
        numeric = auto and not holds_images(X)
        source = embedder_of(None if numeric else self.encoder, self.cache)
        config = self._config(images=holds_images(X))
        examples = self._examples(X, y, sample_weight, views, source, config, classes)
        if groups is not None:
            check_consistent_length(examples.labels, groups)
            numbers = np.unique(column_or_1d(groups), return_inverse=True)[1]
            examples = replace(examples, groups=numbers)
        prompted = source is not None
        names = names_of_classes(self.classes_.tolist(), self.class_names, in_prompts=prompted)
        ids, examples = examples.ids, examples.weighted(names)
        merged: Mapping[str, tuple[str, float]] | None = None
        sources: Sequence[TextSource]
        if source is None:
            if self.pool is not None or self.templates is not None or classes is not None:
                raise SettingError(
                    "pool, templates and classes without examples need an encoder: set encoder"
                )
            examples, merged = examples.merged()
            self._space = RowSpace.around(examples.rows, examples.relative_weights())
            examples = examples.unit(self._space)
            pool, vectors = prototypes(names, examples)
            config, sources = replace(config, residual=False), [vectors]
        else:
            self._space = RowSpace()
            examples = examples.unit(self._space)
            phrases = noun_phrases(self.class_names)
            pool = embed_pool(names, source, self.pool, self.templates, config.concatenate, phrases)
            sources = members_of(source) if isinstance(source, Encoder) else [source]
        n_heads = len(sources) if self._averages(source) else 1
        with ProgressBars(is_interactive()) as progress:
            trainer = Trainer(config, progress=progress)
            notes = {"view_scale": config.view_scale} if holds_images(X) else None
            fitted = trainer.fit(examples, pool, sources, n_heads=n_heads, notes=notes)
        weights = fitted.ensemble.sample_weights
        if merged is not None:
            weights = {name: share * weights[into] for name, (into, share) in merged.items()}
        self.sample_weight_ = np.array([weights.get(name, 0.0) for name in ids])
        self._set_fitted(fitted.ensemble, sources[:n_heads], fitted.heads)
        return self

    def _averages(self, source: Source | None) -> bool:
        """Check the parameter `average`, and return whether there are several encoders to average."""
        if not isinstance(self.average, bool | np.bool_):
            raise SettingError(f"average is {self.average!r}, but must be True or False")
        return bool(self.average) and isinstance(source, EncoderGroup)

    def _config(self, *, images: bool) -> FitConfig:
        """Check the parameters; the number of views matters for images only."""
        values = {name: getattr(self, parameter) for name, parameter in _PARAMETERS.items()}
        values |= self._further_settings()
        # A search over an array sets numpy's booleans, which are no bool.
        values = {k: bool(v) if isinstance(v, np.bool_) else v for k, v in values.items()}
        # A number is the seed itself, so that the command line and this give the same text.
        if not isinstance(self.random_state, Integral):
            values["seed"] = check_random_state(self.random_state).randint(2**31 - 1)
        settings = settings_of(FitConfig)
        if images:
            return FitConfig(**checked(values, settings, _PARAMETERS))
        views = settings["views"].checked(values.pop("views"), "n_views")
        plain = checked(values, settings, _PARAMETERS)
        if views is not None:
            views = max(views, plain.get("views_per_round") or 0)
        return FitConfig(**plain, views=views)

    def _further_settings(self) -> dict[str, Any]:
        """Return the parameter `settings`, if all its names are known."""
        if self.settings is None:
            return {}
        if not isinstance(self.settings, Mapping):
            raise SettingError(f"settings is {a_type(self.settings)}: give a mapping by name")
        for name in self.settings:
            if name in _PARAMETERS:
                raise SettingError(
                    f"settings has {name!r}, which is the parameter {_PARAMETERS[name]}"
                )
            if name not in _SETTINGS:
                raise SettingError(
                    f"there is no setting {name!r}; settings may have {', '.join(_SETTINGS)}"
                )
        return dict(self.settings)

    def _examples(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None,
        views: ArrayLike | None,
        source: Source | None,
        config: FitConfig,
        classes: ArrayLike | None,
    ) -> Examples:
        """Check X and y as scikit-learn does, find the classes, and embed images."""
        if isinstance(source, EncoderGroup) and not holds_images(X):
            raise DataError(
                "X holds embeddings, which are of one encoder: give images to learn on several"
            )
        for given_labels in (y, classes):
            if given_labels is not None:
                check_labels(given_labels)
        if not holds_images(X):
            check_embeddings(X, self.encoder)
            given, y = validate_data(self, X, y, dtype="numeric")
            numbers: NDArray[Any] = np.asarray(given, dtype=np.float64)
            labels, weights = self._checked_targets(y, sample_weight, numbers, classes)
            ids = tuple(map(str, range(len(numbers))))
            crops = checked_views(views, numbers)
            if source is not None:
                numbers = unit_embeddings(numbers)
                crops = None if crops is None else unit_embeddings(crops)
            return Examples(numbers, labels, ids, weights, crops)
        if views is not None:
            raise SettingError("views go with embeddings; X holds images, whose views are drawn")
        data = Dataset(as_images(X), ())
        if len(data) == 1:
            raise DataError("X is one image, and fit takes several, of two classes or more")
        check_consistent_length(data.images, y)
        y = column_or_1d(y, warn=True)
        labels, weights = self._checked_targets(y, sample_weight, data.images, classes)
        warn_of_conflicting_labels(data.images, y.tolist())
        # The residual is fitted on the crops even if no round sees any.
        wanted = config.crops(len(data)) if config.sees_crops or config.residual else 0
        embedder = image_embedder(source)
        rows = embedder.images(data, views=wanted, view_scale=config.view_scale)
        members = members_of(embedder)
        self.n_features_in_ = members[0].dim
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit on a data frame
        return Examples.with_views(rows, labels, data.ids, weights, len(members), data.groups)

    def _checked_targets(
        self, y: Labels, sample_weight: ArrayLike | None, rows: Any, classes: ArrayLike | None
    ) -> tuple[NDArray[np.int64], Floats | None]:
        check_classification_targets(y)
        present = np.unique(y)
        if len(present) < 2:
            raise LabelError(f"y has one class only, {str(present[0])!r}; at least two are needed")
        self.classes_ = present if classes is None else np.unique(column_or_1d(classes))
        if len(unknown := np.setdiff1d(present, self.classes_)):
            raise LabelError(f"the label {unknown[0]!s} is not in classes: add it")
        labels = np.searchsorted(self.classes_, y)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, rows, dtype=np.float64)
        return labels.astype(np.int64), weights

    def _set_fitted(
        self, ensemble: PromptEnsemble, sources: Sequence[TextSource], heads: Sequence[Head]
    ) -> None:
        """Set the fitted attributes from an ensemble and its heads by their sources."""
        self.ensemble_ = ensemble
        self.n_iter_ = len(ensemble)
        self.round_errors_ = np.array([round_.error for round_ in ensemble.rounds])
        self.logit_scale_ = ensemble.settings.get("logit_scale")
        self.scale_choice_ = ensemble.settings.get("scale_choice")
        self._heads, self.head_ = tuple(heads), heads[0]
        self._other_heads: tuple[Head, ...] = ()  # on the encoders before a transfer
        stages = (staged_heads(ensemble, *pair) for pair in zip(sources, heads, strict=True))
        self._stages = list(zip(*stages, strict=True))  # after each round, the heads in float64

    def transfer(self, encoder: Encoder | str | Sequence[Encoder | str]) -> "PromptBoostClassifier":
        """Return a fitted classifier with the same text on another encoder.

        The residual belongs to its encoder: it is dropped, which is logged, and transferring back restores
        it.
        """
        check_is_fitted(self)
        if encoder is None:
            raise SettingError("encoder is None: give the encoder to transfer to")
        self._check_sentences()
        other = type(self)(**self.get_params(deep=False) | {"encoder": encoder})
        sources = other._sources()
        heads = self.classifier_.transfer(sources).heads
        other._restored(self.ensemble_, sources, heads)
        other._other_heads = (*self._other_heads, *self._heads)
        for name in ("classes_", "sample_weight_"):
            if name in self.__dict__:
                setattr(other, name, getattr(self, name))
        return other

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        encoder: TextSource | str | Sequence[str | Encoder] | None = None,
        *,
        allow_download: bool = False,
        **parameters: Any,
    ) -> "PromptBoostClassifier":
        """Load a fitted classifier from a run, the folder of :meth:`save`, or an ``ensemble.json``.

        The class names are the labels.

        Parameters
        ----------
        path : str or path
            The folder or file.
        encoder : encoder, str, list, mapping or callable, optional
            By default the encoder of the fit; with ``average=True`` all of them.
        allow_download : bool, default=False
            Download an encoder that only the file names; see :func:`promptboost.load`.
        **parameters
            Parameters of the constructor, for a later :meth:`fit`.
        """
        ensemble = load(path).ensemble
        if encoder is None:
            fitted_on = [record.id for record in ensemble.encoders]
            names = fitted_on if parameters.get("average") else fitted_on[:1]
            for name in names:
                check_trusted(name, allow_download=allow_download)
            encoder = names if len(names) > 1 else ensemble.encoder_id
        self = cls(encoder, **parameters)
        sources = self._sources()
        heads = load(path, sources, text_only=not self.residual).heads
        return self._restored(ensemble, sources, heads)

    def _sources(self) -> list[Any]:
        """Return the encoders that predict."""
        source = embedder_of(self.encoder, self.cache)
        if source is None:
            raise SettingError("the ensemble names no encoder: give one as encoder")
        if isinstance(source, EncoderGroup) and self._averages(source):
            return list(source.members)
        return [_first(source)]

    def _restored(
        self, ensemble: PromptEnsemble, sources: Sequence[TextSource], heads: Sequence[Head]
    ) -> "PromptBoostClassifier":
        self.classes_ = np.array(ensemble.class_names)
        self._space = RowSpace()
        self._set_fitted(ensemble, sources, heads)
        self.n_features_in_ = self.head_.dim
        return self

    @property
    def classifier_(self) -> PromptClassifier:
        """The text with its encoder, which classifies images in any form."""
        check_is_fitted(self)
        self._check_sentences()
        source: Any
        if len(self._heads) > 1:
            source = self._embedders()
        else:
            source = _first(embedder_of(self.encoder, self.cache))
        return PromptClassifier(self.ensemble_, source, self._heads, other_heads=self._other_heads)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the text and its heads into a folder, which :meth:`load` reads.

        After :meth:`transfer`, pass the encoder to :meth:`load`: the text names the one of its fit.
        """
        self.classifier_.save(folder)

    def _check_sentences(self) -> None:
        if self._space.constant is not None:
            raise _NoSentencesError(
                "fitted on prototypes, which are rows of X: only sentences can be saved or moved"
            )

    def predict(
        self,
        X: Any,
        *,
        reject: bool = False,
        accept: float = 0.95,
        class_priors: ClassPriors | None = None,
    ) -> Labels:
        """Return the label of each image or row of X, which is as in :meth:`fit`, or one image.

        With `reject`, it is None for images that probably show none of the classes. `accept` and
        `class_priors` are those of :meth:`PromptClassifier.predict`.
        """
        rows, heads = self._rows(X), self._stages[-1]
        if not reject and class_priors is None:
            return self._labels(heads, rows)
        return decided(heads, rows, self.classes_, None, reject, accept, class_priors)

    def predict_proba(self, X: Any, *, class_priors: ClassPriors | None = None) -> Floats:
        """Return probabilities, shape (n_samples, K), on the logit scale that the fit chose.

        `class_priors` are those of :meth:`PromptClassifier.predict_proba`.
        """
        rows = self._rows(X)
        return adjusted_proba(self._stages[-1], rows, self.classes_.tolist(), class_priors)

    def prediction_sets(self, X: Any, coverage: float = 0.9) -> list[list[Any]]:
        """Return the smallest set of labels with a coverage for each sample, best first.

        See :meth:`PromptClassifier.prediction_sets`.
        """
        rows = self._rows(X)
        return sets_of_classes(self._stages[-1], rows, self.classes_.tolist(), coverage)

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def top_k(self, X: Any, k: int = 3) -> list[list[tuple[Any, float]]]:
        """Return the `k` most probable labels of each sample with their probabilities, best first."""
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise SettingError(f"k is {k!r}: give a whole number from 1 up")
        return [
            [(self.classes_[c], float(row[c])) for c in np.argsort(-row, kind="stable")[:k]]
            for row in self.predict_proba(X)
        ]

    def explain(
        self, X: Any, *, answer: str | None = None, against: str | None = None
    ) -> "list[Explanation]":
        """Explain predictions by the contribution of each sentence; see :meth:`PromptClassifier.explain`.

        Classes are named as in ``ensemble_``. It needs sentences, and one encoder.
        """
        rows = self._rows(X)
        images = X if holds_images(X) else rows[0]
        return self.classifier_.explain(images, answer=answer, against=against)

    def decision_function(self, X: Any) -> Floats:
        """Return the boosting vote centered over the classes, shape (n_samples, K).

        For two classes, the vote for the second minus that for the first, shape (n_samples,).
        """
        rows = self._rows(X)
        return _votes(self._stages[-1], rows)

    def staged_predict(self, X: Any) -> Iterator[Labels]:
        """Return :meth:`predict` after each round."""
        rows = self._rows(X)
        yield from (self._labels(heads, rows) for heads in self._stages)

    def staged_decision_function(self, X: Any) -> Iterator[Floats]:
        """Return :meth:`decision_function` after each round."""
        rows = self._rows(X)
        yield from (_votes(heads, rows) for heads in self._stages)

    def staged_score(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Iterator[float]:
        """Return the accuracy after each round."""
        from sklearn.metrics import accuracy_score

        for labels in self.staged_predict(X):
            yield float(accuracy_score(y, labels, sample_weight=sample_weight))

    def _labels(self, heads: Sequence[Head], rows: list[Floats]) -> Labels:
        return np.asarray(self.classes_[mean_index(heads, rows)])

    def _rows(self, X: Any) -> list[Floats]:
        """Check X, embed images, and return the embeddings of each encoder, of length one."""
        check_is_fitted(self)
        if not holds_images(X):
            if len(self._heads) > 1:
                raise DataError(
                    "X holds embeddings, which are of one encoder: give images, or set average to False"
                )
            check_embeddings(X, self.encoder)
            rows = validate_data(self, X, reset=False, dtype="numeric")
            rows = np.asarray(rows, dtype=np.float64)
            if self._space.constant is None:
                rows = unit_embeddings(rows)
            return [np.asarray(self._space.unit(rows))]
        if self._space.constant is not None:
            raise DataError(
                "X holds images, but the fit was on a numeric matrix: fit on images first"
            )
        embedders = self._embedders()
        data = Dataset(as_images(X), ())
        return [
            np.asarray(self._space.unit(embedder.originals(data).astype(np.float64)))
            for embedder in embedders
        ]

    def _embedders(self) -> list[Embedder]:
        """Return the encoders of the images; raise if they are not those of the text."""
        embedders = members_of(image_embedder(self.encoder, self.cache))[: len(self._heads)]
        fitted_with = [head.encoder_fingerprint for head in self._heads]
        if [embedder.fingerprint for embedder in embedders] != fitted_with:
            then = ", ".join(repr(head.encoder_id) for head in self._heads)
            now = ", ".join(repr(embedder.id) for embedder in embedders)
            raise EncoderError(f"fitted with {then}, but encoder is {now} now: use transfer")
        return list(embedders)


if PromptBoostClassifier.__doc__:  # python -OO has none
    _names = [name for name in _PARAMETERS if name != "seed"]
    PromptBoostClassifier.__doc__ = PromptBoostClassifier.__doc__.replace(
        "    {parameters}\n", indent(documented(_names, _PARAMETERS), "    ") + "\n"
    ).replace("{settings}", ", ".join(_SETTINGS))


class ImageEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Embed images, as the first step of a pipeline.

    Parameters
    ----------
    encoder : Encoder or str, default="auto"
        The model or its name, see :func:`promptboost.load_encoder`.
    cache : bool or path-like, default=True
        Where embeddings are stored: in the user's cache, nowhere, or in a folder.

    Attributes
    ----------
    n_features_out_ : int
        Length of the embeddings.

    Examples
    --------
    >>> from PIL import Image
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> X = [Image.new("RGB", (8, 8), color) for color in ("red", "tomato", "blue", "navy")]
    >>> model = make_pipeline(ImageEmbedder("fake:32-0", cache=False), LogisticRegression())
    >>> model.fit(X, ["fire", "fire", "ice", "ice"]).predict([Image.new("RGB", (8, 8), "darkred")])
    array(['fire'], dtype='<U4')
    """

    def __init__(self, encoder: Encoder | str = AUTO, *, cache: Cache = True) -> None:
        self.encoder = encoder
        self.cache = cache

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.requires_fit = False
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Load the encoder; there is nothing to learn."""
        self.n_features_out_ = image_embedder(self.encoder, self.cache).dim
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Embed images (paths, PIL images, arrays of pixels, bytes of files) as rows of length one."""
        if not holds_images(X):
            raise DataError("X holds no images: give paths, PIL images, arrays of pixels, or bytes")
        embedder = image_embedder(self.encoder, self.cache)
        return embedder.originals(Dataset(as_images(X), ()))

    @property
    def _n_features_out(self) -> int:
        return int(self.n_features_out_)


def _first(source: Source | None) -> TextSource | None:
    """Return the first encoder of a group, or the source itself."""
    return source.members[0] if isinstance(source, EncoderGroup) else source


def _votes(heads: Sequence[Head], rows: list[Floats]) -> Floats:
    votes = mean_decision(heads, rows)
    return np.asarray(votes[:, 1] - votes[:, 0]) if votes.shape[1] == 2 else votes

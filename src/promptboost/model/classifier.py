"""PromptClassifier: an ensemble with its encoders, which classifies images."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.data.dataset import Dataset
from promptboost.data.memory import as_embeddings, as_images, holds_images, is_single_image
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, embed_texts
from promptboost.encoders.registry import check_trusted
from promptboost.errors import (
    DataError,
    EncoderError,
    LabelError,
    RunError,
    SettingError,
    command_name,
    count,
)
from promptboost.io import FIRST, write_text, writing
from promptboost.model.decisions import ClassPriors, adjusted_proba, decided, sets_of_classes
from promptboost.model.ensemble import ENSEMBLE_FILE, PromptEnsemble
from promptboost.model.head import Head, mean_decision, write_head
from promptboost.model.head_files import (
    embed_ensemble,
    head_without_encoder,
    log_no_residual,
    stored_head,
)
from promptboost.model.notebook import card, sizes
from promptboost.progress import Progress, ProgressBars, is_interactive

if TYPE_CHECKING:
    from promptboost.model.prediction import Explanation


def load(
    path: str | os.PathLike[str],
    encoder: "str | Encoder | TextSource | Sequence[str | Encoder] | None" = None,
    *,
    average: bool = False,
    cache: bool = True,
    text_only: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    allow_download: bool = False,
) -> "PromptClassifier":
    """Load a classifier from a run folder.

    Parameters
    ----------
    path : str or path
        A run folder, a folder that :meth:`PromptClassifier.save` wrote, or an ``ensemble.json``.
    encoder : str, Encoder, mapping, callable or list, optional
        The encoder, if not that of the fit (the first, where there were several). The probabilities of
        a list of encoders are averaged.
    average, cache, text_only, device, progress
        As for :class:`PromptClassifier`.
    allow_download : bool, default=False
        Download the encoders that the file names, if they are not on this machine. Encoders given by
        `encoder` are downloaded in any case.

    Raises
    ------
    EncoderError
        When the encoder is first needed: if it is not here, or is code that only the file names.
    InputError
        If there is no ensemble (it is a FileNotFoundError too), or it cannot be understood.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> from promptboost.model import PromptEnsemble, Round
    >>> banks = {"fire": {"something red": 1}, "ice": {"something blue": 1}}
    >>> ensemble = PromptEnsemble(("fire", "ice"), (Round("{}", banks, 0.0, 0.1),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     PromptClassifier(ensemble, "fake:32-0", cache=False).save(folder)
    ...     classifier = load(folder, "fake:32-0", cache=False)
    ...     classifier.predict(Image.new("RGB", (8, 8), "red")).tolist()
    ['fire']
    """
    file = Path(path)
    if file.is_dir():
        file = file / ENSEMBLE_FILE
    classifier = PromptClassifier(
        PromptEnsemble.load(file),
        encoder,
        average=average,
        cache=cache,
        text_only=text_only,
        device=device,
        progress=progress,
        allow_download=allow_download,
    )
    classifier._folder = file.parent
    return classifier


class PromptClassifier:
    """A classifier made of sentences, with one or several encoders.

    Encoders are loaded and prompts embedded when they are first needed: the class names and sentences
    of a run can be read without its encoder. With several encoders, the probabilities are averaged, and
    only images can be classified: embeddings belong to one encoder.

    Parameters
    ----------
    ensemble : PromptEnsemble
        The text.
    encoder : str, Encoder, mapping, callable or list, optional
        An encoder or its name, or a list of them; by default the first encoder of the fit. A mapping
        from text to embedding, or a function that embeds a list of texts, is enough to classify
        embeddings.
    heads : Head or sequence of Head, optional
        The text embedded by each encoder, if that is already known.
    average : bool, default=False
        Average the probabilities of all encoders of the fit, where no encoder is given.
    cache : bool, default=True
        Read embeddings from the store, and write new ones to it.
    text_only : bool, default=False
        Predict with the text alone, without the residual.
    device : str, optional
        The torch device of encoders given by name; by default the fastest one.
    progress : callable, optional
        Called as ``progress(stage, done, total)``; by default it draws bars in notebooks and at the
        Python prompt.
    allow_download : bool, default=False
        Download the encoders that the ensemble names, if they are not on this machine.
    other_heads : sequence of Head, optional
        Heads on other encoders, with which :meth:`transfer` restores their residuals.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.model import PromptEnsemble, Round
    >>> banks = {"fire": {"something red": 1}, "ice": {"something blue": 1}}
    >>> ensemble = PromptEnsemble(("fire", "ice"), (Round("{}", banks, 0.0, 0.1),))
    >>> classifier = PromptClassifier(ensemble, "fake:32-0", cache=False)
    >>> classifier
    PromptClassifier(2 classes, 1 round, 2 sentences, encoder='fake:32-0')
    >>> red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    >>> classifier.predict([red, blue]).tolist()
    ['fire', 'ice']
    >>> classifier.transfer("fake:16-1").predict(blue).tolist()
    ['ice']
    >>> both = Image.new("RGB", (8, 8), "magenta")
    >>> classifier.predict([red, both], abstain=0.6).tolist()
    ['fire', None]
    >>> PromptClassifier(ensemble, ["fake:32-0", "fake:16-1"], cache=False).predict(red).tolist()
    ['fire']
    """

    def __init__(
        self,
        ensemble: PromptEnsemble,
        encoder: "str | Encoder | TextSource | Sequence[str | Encoder] | None" = None,
        heads: Head | Sequence[Head] | None = None,
        *,
        average: bool = False,
        cache: bool = True,
        text_only: bool = False,
        device: str | None = None,
        progress: Progress | None = None,
        allow_download: bool = False,
        other_heads: Sequence[Head] = (),
    ) -> None:
        sources: Sequence[Any] = encoder if isinstance(encoder, list | tuple) else [encoder]
        if encoder is None:
            fitted_on = [learned_on.id for learned_on in ensemble.encoders]
            sources = (fitted_on if average else fitted_on[:1]) or [None]
        elif not sources or not all(
            isinstance(source, str | Encoder | Mapping) or callable(source) for source in sources
        ):
            raise SettingError(
                f"encoder is {encoder!r}: give an encoder or its name, a mapping from text to embedding, a "
                "function that embeds a list of texts, or a list of encoders"
            )
        self._given_heads = (heads,) if isinstance(heads, Head) else tuple(heads or ())
        if any(head.class_names != ensemble.class_names for head in self._given_heads):
            raise LabelError("the head and the ensemble are of different classes")
        if self._given_heads and len(self._given_heads) != len(sources):
            raise SettingError(
                f"{len(self._given_heads)} heads for {count(len(sources), 'encoder')}"
            )
        self.ensemble = ensemble
        self._sources = tuple(sources)
        self._other_heads = tuple(other_heads)
        self._named_by_file, self._allow_download = encoder is None, allow_download
        self._text_only = text_only
        self._cache, self._device = cache, device
        self._progress = ProgressBars(shown=is_interactive()) if progress is None else progress
        self._folder: Path | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the columns of :meth:`predict_proba`."""
        return self.ensemble.class_names

    @property
    def encoder(self) -> Encoder | TextSource:
        """The encoder, the first of several; it is loaded on first access."""
        if self._sources[0] is None:
            raise EncoderError(
                "the ensemble names no encoder: pass encoder='NAME', one of promptboost models"
            )
        embedder = self._opened[0]
        return self._sources[0] if embedder is None else embedder.encoder

    @property
    def embedder(self) -> Embedder:
        """The encoder with its store, the first of several."""
        return self.embedders[0]

    @property
    def embedders(self) -> tuple[Embedder, ...]:
        """The encoders with their stores."""
        embedders = tuple(embedder for embedder in self._opened if embedder is not None)
        if len(embedders) < len(self._sources):
            raise DataError(
                "there is no encoder to embed these images: pass an encoder or its name, or give "
                "embeddings"
            )
        for head, embedder in zip(self._given_heads, embedders, strict=False):
            if head.encoder_fingerprint not in (None, embedder.fingerprint):
                raise EncoderError(
                    f"the head was made with the encoder {head.encoder_id!r}, not {embedder.id!r}: pass "
                    "that encoder, or no head"
                )
        return embedders

    @cached_property
    def _opened(self) -> tuple[Embedder | None, ...]:
        """The encoders with their stores; None for a source that embeds no images."""
        return tuple(map(self._open, self._sources))

    def _open(self, source: Any) -> Embedder | None:
        if not isinstance(source, str | Encoder):
            return None
        if isinstance(source, str) and self._named_by_file:
            check_trusted(source, allow_download=self._allow_download)
        return Embedder.open(
            source, cache=self._cache, progress=self._progress, device=self._device
        )

    @property
    def head(self) -> Head:
        """The embedded text, by the first of several encoders."""
        return self.heads[0]

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """The text embedded by each encoder; see :func:`stored_head`."""
        heads = self._given_heads or tuple(map(self._head, self._opened))
        return tuple(head.without_residual() for head in heads) if self._text_only else heads

    def _head(self, embedder: Embedder | None) -> Head:
        """Embed the text, and complete it with the files of the folder."""
        for head in self._other_heads:
            if embedder is not None and head.encoder_fingerprint == embedder.fingerprint:
                return head
        folder, text_only = self._folder, self._text_only
        if embedder is not None:
            head = embed_ensemble(self.ensemble, embedder)
        elif (
            self._sources[0] is None
            and folder is not None
            and (stored := head_without_encoder(folder, self.ensemble, text_only=text_only))
        ):
            return stored
        else:
            source: Any = self.encoder  # a mapping or a function; raises if there is none
            head = self.ensemble.embed(source)
        if folder is not None:
            head = stored_head(folder, self.ensemble, head, text_only=text_only)
        had_residual = any(other.residual is not None for other in self._other_heads)
        if had_residual and head.residual is None and not text_only:
            log_no_residual(head.encoder_id)
        return head

    # --- predicting ----------------------------------------------------------------------------

    def predict(
        self,
        images: Any,
        abstain: float | None = None,
        *,
        reject: bool = False,
        accept: float = 0.95,
        class_priors: ClassPriors | None = None,
    ) -> NDArray[Any]:
        """Return the class name of each image.

        Parameters
        ----------
        images : image, sequence of images, or embeddings
            An image is a path, a PIL image, bytes of a file, an H × W × 3 array of uint8, or a torch
            tensor (C × H × W, uint8 or floats from 0 to 1). Several are a list of them, or an array or
            tensor with one more dimension. Embeddings of the encoder are an array of floats of shape
            (n, D), or (D,) for a single one.
        abstain : float, optional
            The least probability, from 0 to 1: where no class reaches it, None is returned.
        reject : bool, default=False
            Return None for images that probably show none of the classes: those whose largest logit is
            below the threshold that a share `accept` of cross-validated training images reach.
        accept : float, default=0.95
        class_priors : {"equal", "estimate"} or mapping, optional
            Adjust the predictions to the frequencies of the classes among these images; see
            :meth:`predict_proba`.

        Returns
        -------
        ndarray of str, shape (n,)
            Of length one for a single image. With `abstain` or `reject`, an array of objects: str or
            None.
        """
        rows = self._rows(images)
        return decided(
            self.heads, rows, np.asarray(self.class_names), abstain, reject, accept, class_priors
        )

    def predict_proba(
        self, images: Any, *, class_priors: ClassPriors | None = None
    ) -> NDArray[np.float64]:
        """Return the probability of each class for each image, shape (n, K); the mean over encoders.

        The fit chose the logit scale on held-out training images, where there were enough of them.

        Parameters
        ----------
        images
            As for :meth:`predict`.
        class_priors : {"equal", "estimate"} or mapping, optional
            Adjust the probabilities to the frequencies of the classes among these images: equal,
            estimated, or given as a mapping from class name to frequency, where other classes do not
            occur. Warns with :class:`~promptboost.errors.ClassPriorsWarning` if that is unreliable.
        """
        rows = self._rows(images)
        return adjusted_proba(self.heads, rows, self.class_names, class_priors)

    def prediction_sets(self, images: Any, coverage: float = 0.9) -> list[list[str]]:
        """Return the smallest set of classes with the given coverage for each image, best first.

        A share `coverage` of images has its true class in its set, if the images are of the same kind as
        the training images; the sets are calibrated on cross-validated predictions of these.
        """
        rows = self._rows(images)
        return sets_of_classes(self.heads, rows, self.class_names, coverage)

    def predict_log_proba(self, images: Any) -> NDArray[np.float64]:
        """Return the logarithm of :meth:`predict_proba`, shape (n, K)."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(images))

    def decision_function(self, images: Any) -> NDArray[np.float64]:
        """Return the boosting vote for each class and image, centered over the classes: (n, K).

        With several encoders, it is the logarithm of the mean probability.
        """
        rows = self._rows(images)
        return mean_decision(self.heads, rows)

    def top_k(self, images: Any, k: int = 3) -> list[list[tuple[str, float]]]:
        """Return the `k` most probable classes of each image with their probabilities, best first."""
        if type(k) is not int or k < 1:
            raise SettingError(f"k is {k!r}: give a whole number from 1 up")
        return self.best(self.predict_proba(images), k)

    def __call__(self, images: Any, top_k: int = 5) -> list[Any]:
        """Return the most probable classes as Hugging Face's pipelines do.

        ``[{"label": "pug", "score": 0.9}, …]``, best first, for one path or image; a list of those for
        several.
        """
        answers = [
            [{"label": name, "score": score} for name, score in best]
            for best in self.top_k(images, top_k)
        ]
        return answers[0] if is_single_image(images) else answers

    def best(self, probabilities: NDArray[np.float64], k: int) -> list[list[tuple[str, float]]]:
        """Return the `k` most probable classes of each row of :meth:`predict_proba`, best first."""
        names = self.class_names
        return [
            [(names[c], float(row[c])) for c in np.argsort(-row, kind="stable")[:k].tolist()]
            for row in probabilities
        ]

    def explain(
        self, images: Any, *, answer: str | None = None, against: str | None = None
    ) -> "list[Explanation]":
        """Explain each prediction by the contributions of the sentences and of the residual.

        Of several encoders, explain one at a time: a mean of probabilities is no sum of contributions.

        Parameters
        ----------
        images : image, sequence of images, or embeddings
            As for :meth:`predict`.
        answer, against : str, optional
            The classes to compare; by default the predicted class and the next most probable one.

        Returns
        -------
        list of Explanation
            One for each image; the contributions add up to the difference of both classes' logits.

        Examples
        --------
        >>> from PIL import Image
        >>> from promptboost.model import PromptEnsemble, Round
        >>> banks = {"fire": {"something red": 1}, "ice": {"something blue": 1}}
        >>> ensemble = PromptEnsemble(("fire", "ice"), (Round("{}", banks, 0.0, 0.1),))
        >>> classifier = PromptClassifier(ensemble, "fake:32-0", cache=False)
        >>> (why,) = classifier.explain(Image.new("RGB", (8, 8), "red"))
        >>> why.answer, why.against
        ('fire', 'ice')
        """
        from promptboost.model.prediction import explain_rows

        if len(self._sources) > 1:
            raise SettingError(
                "a mean of the probabilities of several encoders is no sum of contributions: explain one "
                "encoder at a time, with load(run, encoder=NAME)"
            )
        images = list(images) if isinstance(images, Iterator) else images
        if holds_images(images):
            images = as_images(images)
            names, rows = [image.name for image in images], self.embeddings(images)
        else:
            rows = self.embeddings(images)
            names = [f"row {number}" for number in range(1, len(rows) + 1)]
        texts = self.ensemble.texts()
        source: Any = self._opened[0] or self.encoder
        vectors = dict(zip(texts, embed_texts(source, texts), strict=True))
        return explain_rows(
            self.ensemble, self.head, vectors, rows, names, answer=answer, against=against
        )

    def embeddings(self, images: Any) -> NDArray[np.floating]:
        """Return the embedding of each image by the first encoder, shape (n, D).

        Embeddings are checked and returned.
        """
        return self._rows(images, 1)[0]

    def _rows(self, images: Any, encoders: int | None = None) -> list[NDArray[np.floating]]:
        """Embed images with all encoders, or the first ones; check embeddings."""
        images = list(images) if isinstance(images, Iterator) else images
        if holds_images(images):
            data = Dataset(as_images(images), ())
            return [embedder.originals(data) for embedder in self.embedders[:encoders]]
        if len(self._sources[:encoders]) > 1:
            raise DataError("embeddings belong to one encoder, and there are several: give images")
        return [as_embeddings(images, self.head.dim)]

    # --- saving and transfer -------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the text and its heads into a folder that :func:`load` reads.

        After :meth:`transfer`, pass the encoder to `load` again: the text names the one of the fit. Each
        file is written whole or not at all, the text last: heads of another text are never used.

        Raises
        ------
        RunError
            If the folder holds a run of ``promptboost fit``, whose metrics are of its own text.
        """
        path, heads = Path(folder), self.heads
        with writing(path, "save"):
            if (path / FIRST).exists():
                raise RunError(
                    f"{path} holds a run of {command_name()} fit, whose figures and held-out images "
                    "are not of this classifier: save it into another folder"
                )
            for head in (*self._other_heads, *heads):
                write_head(path, head)
            write_text(path / ENSEMBLE_FILE, self.ensemble.to_json(), follow=False)

    def transfer(
        self, encoder: "str | Encoder | TextSource | Sequence[str | Encoder]"
    ) -> "PromptClassifier":
        """Return the same text on another encoder, or several; this classifier is not changed.

        A residual belongs to its encoder and is not transferred, which is logged. Transferring back
        restores it.
        """
        moved = PromptClassifier(
            self.ensemble,
            encoder,
            cache=self._cache,
            text_only=self._text_only,
            device=self._device,
            progress=self._progress,
            other_heads=(*self._other_heads, *self._given_heads),
        )
        moved._folder = self._folder
        return moved

    def _encoder_names(self) -> list[str | None]:
        """Return the names of the encoders, without loading them; None for one without a name."""
        return [s if isinstance(s, str) else getattr(s, "id", None) for s in self._sources]

    def __repr__(self) -> str:
        names = self._encoder_names()
        encoder = names if len(names) > 1 else names[0]
        return f"{type(self).__name__}({sizes(self.ensemble)}, encoder={encoder!r})"

    def _repr_html_(self) -> str:
        names = [name for name in self._encoder_names() if name is not None]
        return card(self.ensemble, type(self).__name__, ", ".join(names) or None)

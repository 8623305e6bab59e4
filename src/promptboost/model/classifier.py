"""PromptClassifier: the object at the end of the walk, which answers for images."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from promptboost.data.dataset import Dataset
from promptboost.data.memory import as_embeddings, as_images, holds_images
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, embed_texts
from promptboost.encoders.trust import check_trusted
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
from promptboost.model.edits import check_known
from promptboost.model.ensemble import ENSEMBLE_FILE, PromptEnsemble
from promptboost.model.head import LinearHead
from promptboost.model.head_files import (
    RESIDUAL_FILE,
    AnyHead,
    check_head_file,
    embed_ensemble,
    encoder_slug,
    head_file,
    keep_residual,
    settled_head,
    unknown_head,
    write_head,
)
from promptboost.model.notebook import card, sizes
from promptboost.progress import is_interactive

if TYPE_CHECKING:
    from promptboost.model.explanation import Explanation

__all__ = [
    "RESIDUAL_FILE",
    "AnyHead",
    "PromptClassifier",
    "check_head_file",
    "check_share",
    "embed_ensemble",
    "encoder_slug",
    "head_file",
    "load",
    "sure_ones",
    "write_head",
]


def load(
    path: str | os.PathLike[str],
    encoder: "str | Encoder | TextSource | Sequence[str | Encoder] | None" = None,
    *,
    average: bool = False,
    cache: bool = True,
    text_only: bool = False,
    device: str | None = None,
    progress: bool | None = None,
    allow_download: bool = False,
) -> "PromptClassifier":
    """Load a classifier that answers for images.

    Parameters
    ----------
    path : str or path
        A run folder, a folder that :meth:`PromptClassifier.save` wrote, or an ``ensemble.json``.
    encoder : str, Encoder, mapping, callable or list, optional
        What to see and read with, if not the encoder of the fit, the first where there were several. Of
        a list of encoders, the probabilities are averaged.
    average : bool, default=False
        Average the probabilities of all encoders of the fit, where no encoder is given.
    cache : bool, default=True
        Find embeddings in the store, and keep new ones there.
    text_only : bool, default=False
        Answer by the words alone, without the residual.
    device : str, optional
        Where an encoder given by name runs, as torch spells it; by default the fastest there is.
    progress : bool, optional
        Show progress bars; by default in notebooks and at the prompt of Python.
    allow_download : bool, default=False
        Get the encoder that the file names from a model hub, if it is not on this machine. What you
        name yourself by `encoder` needs no leave.

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
    place = Path(path)
    if place.is_dir():
        place = place / ENSEMBLE_FILE
    ensemble = PromptEnsemble.load(place)
    options: dict[str, Any] = {
        "cache": cache,
        "text_only": text_only,
        "device": device,
        "progress": progress,
        "allow_download": allow_download,
    }
    if isinstance(encoder, list | tuple) and len(encoder) == 1:
        (encoder,) = encoder
    several = isinstance(encoder, list | tuple)
    if several or (average and encoder is None and len(ensemble.encoders) > 1):
        from promptboost.model.average import AveragedClassifier

        given: Any = encoder
        return AveragedClassifier(ensemble, given, **options).beside(place.parent)
    one: Any = encoder
    classifier = PromptClassifier(ensemble, one, **options)
    classifier._folder = place.parent
    return classifier


def check_share(name: str, value: object) -> None:
    """Raise a :class:`SettingError` unless a value is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise SettingError(f"{name} is {value!r}: give a number from 0 to 1")
    if not 0 <= float(value) <= 1:
        raise SettingError(f"{name} is {value}: give a number from 0 to 1")


def all_of(images: Any) -> Any:
    """Return what an iterator yields as a list, which can be gone through twice, and others as they are."""
    return list(images) if isinstance(images, Iterator) else images


def sure_ones(
    names: NDArray[np.str_], probabilities: NDArray[np.float64], abstain: float
) -> NDArray[np.object_]:
    """Return the names with None in place of those whose largest probability is below `abstain`."""
    answers = names.astype(object)
    answers[probabilities.max(axis=1) < abstain] = None
    return answers


class PromptClassifier:
    """A classifier made of sentences, with an encoder to see and read with.

    Nothing is loaded or embedded before it is needed: the names and sentences of a run can be read
    without its encoder.

    Parameters
    ----------
    ensemble : PromptEnsemble
        The text.
    encoder : str, Encoder, mapping or callable, optional
        An encoder or its name; by default the one of the fit. A mapping from text to row, or a function
        that embeds a list of texts, is enough to answer for embeddings.
    head : LinearHead or VotingHead, optional
        The text, embedded by that encoder, where it is known already.
    cache : bool, default=True
        Find embeddings in the store, and keep new ones there.
    text_only : bool, default=False
        Answer by the words alone, without the residual.
    device : str, optional
        Where an encoder given by name runs.
    progress : bool, optional
        Show progress bars; by default in notebooks and at the prompt of Python.
    allow_download : bool, default=False
        Get the encoder that the ensemble names from a model hub, if it is not on this machine.

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
    """

    def __init__(
        self,
        ensemble: PromptEnsemble,
        encoder: str | Encoder | TextSource | None = None,
        head: AnyHead | None = None,
        *,
        cache: bool = True,
        text_only: bool = False,
        device: str | None = None,
        progress: bool | None = None,
        allow_download: bool = False,
    ) -> None:
        if not isinstance(encoder, str | Encoder | Mapping | None) and not callable(encoder):
            raise SettingError(
                f"encoder is {encoder!r}: give an encoder or its name, a mapping from text to row, or a "
                "function that embeds a list of texts"
            )
        if head is not None and head.class_names != ensemble.class_names:
            raise LabelError("the head and the ensemble are of different classes")
        self.ensemble = ensemble
        self._source = ensemble.encoder_id if encoder is None else encoder
        self._named_by_file, self._allow_download = encoder is None, allow_download
        self._given_head, self._text_only = head, text_only
        self._cache, self._device = cache, device
        self._progress = is_interactive() if progress is None else progress
        self._folder: Path | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the columns of :meth:`predict_proba`."""
        return self.ensemble.class_names

    @property
    def encoder(self) -> Encoder | TextSource:
        """What sees and reads; it is loaded when it is first asked for."""
        if self._source is None:
            raise EncoderError(
                "the ensemble does not say which encoder it is for: pass encoder='NAME', one of "
                "promptboost models"
            )
        return self._source if self._embedder is None else self._embedder.encoder  # type: ignore[return-value]

    @property
    def embedder(self) -> Embedder:
        """The encoder with its store."""
        if self._embedder is None:
            raise DataError(
                "these are images, and there is no encoder to embed them: pass an encoder or the name of "
                "one, or give embeddings"
            )
        head, encoder = self._given_head, self._embedder
        if head is not None and head.encoder_fingerprint not in (None, encoder.fingerprint):
            raise EncoderError(
                f"the head is of the encoder {head.encoder_id!r}, and images would be seen with "
                f"{encoder.id!r}: pass that encoder, or no head"
            )
        return self._embedder

    @cached_property
    def _embedder(self) -> Embedder | None:
        """The encoder with its store; None where there is none, or none that can see."""
        source = self._source
        if isinstance(source, Embedder):
            return source
        if isinstance(source, str):
            if self._named_by_file:
                check_trusted(source, allow_download=self._allow_download)
            return Embedder.open(
                source, cache=self._cache, progress=self._progress, device=self._device
            )
        if not isinstance(source, Encoder):
            return None
        if not self._cache:
            return Embedder(source, None, self._progress)
        from promptboost.encoders.store import EmbeddingStore

        return Embedder(source, EmbeddingStore(), self._progress)

    @cached_property
    def head(self) -> AnyHead:
        """The sentences as vectors, from the store or embedded; see :func:`settled_head`.

        Only a text that names no encoder has no vectors but those in the file beside it.
        """
        if self._given_head is not None:
            head = self._given_head
            return (
                head.without_residual()
                if self._text_only and isinstance(head, LinearHead)
                else head
            )
        embedder, folder = self._embedder, self._folder
        if embedder is not None:
            made = embed_ensemble(self.ensemble, embedder)
            if folder is None:
                return made
            return settled_head(
                folder, self.ensemble, made, text_only=self._text_only, embedder=embedder
            )
        if self._source is None and folder is not None:
            unknown = unknown_head(folder, self.ensemble)
            if unknown is not None:
                return unknown
        source: Any = self.encoder  # a mapping or a function; an error where there is nothing
        return self.ensemble.embed_texts(source)

    # --- answering -----------------------------------------------------------------------------

    @overload
    def predict(self, images: Any, abstain: None = None) -> NDArray[np.str_]: ...
    @overload
    def predict(self, images: Any, abstain: float) -> NDArray[np.object_]: ...
    def predict(
        self, images: Any, abstain: float | None = None
    ) -> NDArray[np.str_] | NDArray[np.object_]:
        """Return the class name of each image.

        Parameters
        ----------
        images : image, sequence of images, or embeddings
            An image is a path, a PIL image, bytes of a file, an H × W × 3 array of uint8, or a torch
            tensor (C × H × W, uint8 or floats from 0 to 1). Many are a list of them, or an array or
            tensor with one more dimension. Embeddings of the encoder are an array of floats of shape
            (n, D), or (D,) for one.
        abstain : float, optional
            From 0 to 1: an image whose best class is less probable than this is not answered.

        Returns
        -------
        ndarray of str, shape (n,)
            Of length one for one image. With `abstain`, an array of objects: a str, or None for an image
            that is not answered.
        """
        if abstain is not None:
            check_share("abstain", abstain)
        rows = self.embeddings(images)
        names = self.head.predict(rows)
        return (
            names if abstain is None else sure_ones(names, self.head.predict_proba(rows), abstain)
        )

    def predict_proba(self, images: Any) -> NDArray[np.float64]:
        """Return the probability of each class for each image, shape (n, K).

        The scale was chosen by the fit on images set aside, where there were enough of them.
        """
        rows = self.embeddings(images)
        return self.head.predict_proba(rows)

    def decision_function(self, images: Any) -> NDArray[np.float64]:
        """Return the boosting vote for each class and image, centred over the classes: (n, K)."""
        rows = self.embeddings(images)
        return self.head.decision_function(rows)

    def top_k(self, images: Any, k: int = 3) -> list[list[tuple[str, float]]]:
        """Return the `k` most probable classes of each image with their probabilities, best first."""
        if type(k) is not int or k < 1:
            raise SettingError(f"k is {k!r}: give a whole number from 1 up")
        return self.best(self.predict_proba(images), k)

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
        """Return why each image is answered as it is: what each sentence adds, and the residual.

        Parameters
        ----------
        images : image, sequence of images, or embeddings
            As for :meth:`predict`.
        answer, against : str, optional
            The classes to compare; by default the answer, and the class that comes next.

        Returns
        -------
        list of Explanation
            One for each image; what is in it adds up to the difference of both classes' logits.

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
        from promptboost.model.explanation import explain_rows

        images = all_of(images)
        if holds_images(images):
            images = as_images(images)
            names, rows = [image.name for image in images], self.embeddings(images)
        else:
            rows = self.embeddings(images)
            names = [f"row {number}" for number in range(1, len(rows) + 1)]
        texts = self.ensemble.texts()
        source: Any = self.encoder if self._embedder is None else self._embedder
        vectors = dict(zip(texts, embed_texts(source, texts), strict=True))
        return explain_rows(
            self.ensemble, self.head, vectors, rows, names, answer=answer, against=against
        )

    def embeddings(self, images: Any) -> NDArray[np.floating]:
        """Return the embedding of each image, shape (n, D); embeddings are checked and returned."""
        images = all_of(images)
        if not holds_images(images):
            return as_embeddings(images, self.head.dim)
        return self.embedder.originals(Dataset(as_images(images), ()))

    # --- keeping and moving --------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the text and its vectors into a folder, from which :func:`load` makes the same.

        After :meth:`transfer`, name the encoder there again: the text says which one it was learnt on.
        Each file is written whole or not at all, the text last: a head that is not of the text beside
        it is never used.

        Raises
        ------
        RunError
            If a run of ``promptboost fit`` is there: what it measured and held out is of its own text.
        """
        place = Path(folder)
        head = self.head
        with writing(place, "save"):
            if (place / FIRST).exists():
                raise RunError(
                    f"{place} holds a run of {command_name()} fit, whose figures and held-out images "
                    "are not of this classifier: save it into another folder"
                )
            if isinstance(self._source, Embedder):
                # Learnt here, by the estimator or by refit: the next to load it need not be warned.
                keep_residual(head, self._source)
            write_head(place, head)
            write_text(place / ENSEMBLE_FILE, self.ensemble.to_json(), follow=False)

    def transfer(self, encoder: str | Encoder | TextSource) -> "PromptClassifier":
        """Return the same text on another encoder; this classifier stays as it is.

        A residual is of its encoder and stays behind: what moves are the words.
        """
        return PromptClassifier(
            self.ensemble,
            encoder,
            cache=self._cache,
            device=self._device,
            progress=self._progress,
        )

    def refit(
        self, images: Any, labels: Sequence[str], *, views: int = 8, view_scale: float = 0.5
    ) -> "PromptClassifier":
        """Return the same text with a residual learnt from labelled images; this classifier stays.

        For a text that was edited, whose residual was fitted beside other words, or that has none. The
        scale of probabilities is renewed with it.

        Parameters
        ----------
        images : sequence of images, or embeddings
            As for :meth:`predict`. Those that the text was learnt from are best.
        labels : sequence of str
            The class name of each. A class without images has words alone, in balance with the others.
        views, view_scale : int, float
            How many crops of each image, and which least share of its area they show. Embeddings have
            none.
        """
        from promptboost.boosting.balance import with_images
        from promptboost.pool import PLAIN_TEMPLATE

        given = [str(label) for label in labels]
        for label in dict.fromkeys(given):
            check_known(self.ensemble, label)
        if len(set(given)) < 2:
            raise LabelError("images of two classes or more are needed")
        text = embed_ensemble(self.ensemble, self.embedder)
        if not isinstance(text, LinearHead):
            raise SettingError("a text whose rounds vote (algorithm samme) has no residual")
        if holds_images(images):
            data = Dataset(as_images(images), ())
            rows = self.embedder.images(data, views=views, view_scale=view_scale)
        else:
            rows = as_embeddings(images, text.dim)[:, None]
        if len(rows) != len(given):
            raise LabelError(f"{len(given)} labels for {count(len(rows), 'image')}")
        unseen = self.embedder.encode_texts(
            [PLAIN_TEMPLATE.replace("{}", n) for n in self.class_names]
        )
        numbers = np.array([self.class_names.index(label) for label in given])
        head = with_images(text, rows, numbers, unseen)
        return PromptClassifier(self.ensemble, self.embedder, head, cache=self._cache)

    def _encoder_name(self) -> object:
        """Return the name of the encoder, without loading it; None where there is none."""
        source = self._source
        return source if isinstance(source, str) else getattr(source, "id", None)

    def __repr__(self) -> str:
        name = self._encoder_name()
        return f"{type(self).__name__}({sizes(self.ensemble)}, encoder={name!r})"

    def _repr_html_(self) -> str:
        name = self._encoder_name()
        shown = ", ".join(map(str, name)) if isinstance(name, list) else name
        return card(self.ensemble, type(self).__name__, shown)

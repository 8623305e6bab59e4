"""Tip-Adapter and Tip-Adapter-F (Zhang et al., 2022): zero-shot, corrected by a cache of pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, unit_rows
from promptboost.errors import FileFormatError, LabelError, SettingError
from promptboost.methods.contract import Arrays, Fitted, Group, Logits, Method, Origin, Transfer
from promptboost.methods.pictures import FewShotSet, Pictures
from promptboost.methods.registry import spelled
from promptboost.methods.tip_adapter_cache import (
    ALPHAS,
    BETAS,
    Cache,
    Tuning,
    choose_weights,
    tune,
)
from promptboost.methods.zero_shot import ZeroShot
from promptboost.pool import PromptPool

__all__ = ["CacheClassifier", "TipAdapter"]


@dataclass(frozen=True)
class CacheClassifier(Fitted):
    """Class rows made of text, and a cache of pictures that corrects them.

    Parameters
    ----------
    origin : Origin
        Method, classes and encoder.
    rows : array of float32, shape (K, D)
        Mean row of the texts of each class, of length one.
    cache : Cache
        The pictures.

    Examples
    --------
    >>> from promptboost.methods.pictures import RowPictures
    >>> from promptboost.testing import FakeEncoder
    >>> encoder = FakeEncoder(dim=8)
    >>> text, seen = encoder.encode_texts(["fire", "ice"]), encoder.encode_texts(["red", "blue"])
    >>> cache = Cache(seen, np.array([0, 1]), 2, alpha=50.0)
    >>> fitted = CacheClassifier(Origin("x", ("fire", "ice"), encoder), text, cache)
    >>> fitted.predict(RowPictures({encoder.id: seen[:, None]})).tolist()
    [0, 1]
    """

    kind: ClassVar[str] = "tip-adapter"
    origin: Origin
    rows: NDArray[np.float32]
    cache: Cache

    def logits(self, pictures: Pictures) -> Logits:
        """Add what the text says and what the cache says."""
        seen = pictures.rows(self.origin.encoder)
        text = seen @ self.rows.T * self.origin.encoder.logit_scale
        return np.asarray(text + self.cache.scores(seen), dtype=np.float32)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Keep everything."""
        cache = self.cache
        arrays: Arrays = {
            "rows": np.ascontiguousarray(self.rows, dtype=np.float32),
            "keys": np.ascontiguousarray(cache.keys, dtype=np.float32),
            "key_labels": np.ascontiguousarray(cache.labels, dtype=np.int64),
        }
        return {"alpha": cache.alpha, "beta": cache.beta}, arrays

    @classmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Read everything."""
        K, D = len(origin.class_names), origin.encoder.dim
        try:
            rows, keys, labels = arrays["rows"], arrays["keys"], arrays["key_labels"]
            alpha, beta = float(fields["alpha"]), float(fields["beta"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"the file's cache cannot be read: {error!r}") from error
        if rows.shape != (K, D) or keys.shape != (len(labels), D) or labels.ndim != 1:
            raise FileFormatError(
                f"the file's arrays have the shapes {rows.shape}, {keys.shape} and {labels.shape}"
            )
        if len(labels) == 0 or not 0 <= labels.min() <= labels.max() < K:
            raise FileFormatError(f"the file's labels are not all from 0 to {K - 1}")
        return cls(origin, rows, Cache(keys, labels.astype(np.int64), K, alpha, beta))


@dataclass(frozen=True)
class TipAdapter(Method):
    """Zero-shot logits, plus α times the classes of the pictures that look alike.

    Re-implemented. A key of the cache is the mean row of a picture and its cached views (the authors
    average ten random crops). With `tuned` the keys are then trained for a few epochs on the views,
    which is Tip-Adapter-F. The text is the mean of the pool's templates, not the authors' own.

    The authors search α and β, and the best epoch of the tuning, on pictures that are not among the
    few shots. Here nothing else may be looked at. α and β are chosen by cross-validation over the
    few pictures: by how many are right, as the authors do, or before a tuning by the log loss. Where
    a class has one picture only they are 1 and 5.5. The tuning keeps them, and its last step is
    taken.

    Parameters
    ----------
    tuned : bool
        Train the keys.
    template : str
        What the text says: as for ``zero-shot``. The mean of the pool's templates by default.
    alpha, beta : float or None
        Weight of the cache, and how near a picture has to be to count. None chooses them.
    epochs : int
        Of the tuning.
    learning_rate : float
        Of the tuning.
    seed : int
        Order of the pictures, and which views are seen, while tuning.

    Examples
    --------
    >>> from promptboost.methods.example import colour_shots
    >>> from promptboost.pool import build_pool
    >>> shots, encoder = colour_shots("red", "blue")
    >>> fitted = TipAdapter().fit(shots, build_pool(["red", "blue"]), encoder)
    >>> fitted.predict(shots.pictures).tolist(), len(fitted.cache.keys)
    ([0, 0, 1, 1], 4)
    """

    name: ClassVar[str] = "tip-adapter"
    group: ClassVar[Group] = Group.PICTURES
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    tuned: bool = False
    template: str = "all"
    alpha: float | None = None
    beta: float | None = None
    epochs: int = 20
    learning_rate: float = 0.001
    seed: int = 0

    def __post_init__(self) -> None:
        ZeroShot(self.template)  # says what is wrong with a template
        for name in ("alpha", "beta", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise SettingError(f"{name} is {value}, but must be above 0")
        if self.epochs < 1:
            raise SettingError(f"epochs is {self.epochs}, but must be 1 or more")

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Refuse an empty cache, and a text that cannot be made."""
        if len(shots.labels) == 0:
            raise LabelError("tip-adapter keeps pictures, and there is none; give one at least")
        ZeroShot(self.template).check(shots, pool, encoder)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> CacheClassifier:
        """Fill the cache, choose its two numbers, and tune its keys if asked to."""
        self.check(shots, pool, encoder)
        rows = ZeroShot(self.template).fit(shots, pool, encoder).rows
        views = shots.pictures.views(encoder)
        text = rows * np.float32(encoder.logit_scale)
        cache = self._weighed(
            Cache(unit_rows(views.mean(axis=1)), shots.labels, shots.n_classes), views[:, 0], text
        )
        if self.tuned:
            tuning = Tuning(self.epochs, step=self.learning_rate, seed=self.seed)
            cache = tune(cache, views, text, tuning)
        return CacheClassifier(Origin(spelled(self), shots.class_names, encoder), rows, cache)

    def _weighed(self, cache: Cache, rows: NDArray[np.float32], text: NDArray[np.float32]) -> Cache:
        """Choose what is not given."""
        given = replace(
            cache,
            alpha=cache.alpha if self.alpha is None else self.alpha,
            beta=cache.beta if self.beta is None else self.beta,
        )
        alphas = ALPHAS if self.alpha is None else (self.alpha,)
        betas = BETAS if self.beta is None else (self.beta,)
        # The loss is what the tuning lowers: it should begin where that is low.
        return choose_weights(given, rows, text, alphas, betas, by_loss=self.tuned)

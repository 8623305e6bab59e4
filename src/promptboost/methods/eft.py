"""EFT: the effect of tuning on one encoder, added to the zero-shot logits of another."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import EncoderError, FileFormatError, SettingError
from promptboost.methods.archive import from_record, read_record, to_record
from promptboost.methods.base import Arrays, FittedMethod, Images, Logits, Origin
from promptboost.methods.fitted import TextClassifier, filled
from promptboost.pool.templates import PLAIN_TEMPLATE

# Arrays of the tuned classifier are stored with those of the emulated one, which has none.
_INSIDE = "tuned."


@dataclass(frozen=True)
class EmulatedClassifier(FittedMethod):
    """A classifier of one encoder (the source), emulated on another (the target); see :func:`emulate`.

    An image's logits are those of the target's zero-shot classifier, plus `strength` times what
    tuning changed on the source: tuned minus zero-shot. Whatever is added to all classes of an
    image, such as SigLIP's bias, cancels. Every logit has the scale of its own encoder.
    """

    kind: ClassVar[str] = "eft"
    origin: Origin
    tuned: FittedMethod
    template: str = PLAIN_TEMPLATE
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise SettingError(f"strength is {self.strength}, but must be a number from 0 up")
        if self.template.count("{}") != 1:
            raise SettingError(
                f"template is {self.template!r}, but must have one {{}} for the class name"
            )

    @property
    def source(self) -> Encoder:
        """The encoder on which it was learned; it is needed for every image."""
        return self.tuned.origin.encoder

    @cached_property
    def _target_plain(self) -> TextClassifier:
        return TextClassifier(self.origin, filled([self.template], self.origin.class_names))

    @cached_property
    def _source_plain(self) -> TextClassifier:
        return self._target_plain.transfer(self.source)

    def logits(self, images: Images) -> Logits:
        """Score images as the target would if it had learned the same."""
        learned = self.tuned.logits(images) - self._source_plain.logits(images)
        scores = self._target_plain.logits(images) + self.strength * learned
        return np.asarray(scores, dtype=np.float32)

    def transfer(self, encoder: Encoder) -> "EmulatedClassifier":
        """Emulate the same on another target."""
        return replace(self, origin=replace(self.origin, encoder=encoder))

    @property
    def encoders_asked(self) -> tuple[str, ...]:
        """The target, the source, and the source once more if its image tower was tuned."""
        passes = self.origin.encoder.id, self.source.id, *self.tuned.encoders_asked
        return tuple(dict.fromkeys(passes))

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Return the tuned classifier, inside."""
        record, arrays = to_record(self.tuned)
        fields = {"template": self.template, "strength": self.strength, "tuned": record}
        return fields, {_INSIDE + name: array for name, array in arrays.items()}

    @classmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Raise an EncoderError: the target alone is not enough."""
        raise EncoderError(
            f"{origin.method} is emulated and needs two encoders: the one it was learned on "
            f"({_source_id(fields)}) and {origin.encoder.id}. Load it with "
            "promptboost.methods.eft.load_emulated(folder, source, target)"
        )


def emulate(
    tuned: FittedMethod, target: Encoder, *, strength: float = 1.0, template: str = PLAIN_TEMPLATE
) -> EmulatedClassifier:
    """Carry a classifier to another encoder without its vectors (EFT, re-implemented).

    It runs both encoders on each image: see `encoders_asked`. With `strength` 0 it is the target's
    zero-shot classifier; the `template` is what both zero-shot classifiers say.

    Examples
    --------
    >>> from promptboost.methods.fitted import LinearClassifier
    >>> from promptboost.methods.base import RowImages
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> source, target = FakeEncoder(seed=0), FakeEncoder(seed=1)
    >>> seen = {e.id: e.encode_texts(["red", "blue"])[:, None] for e in (source, target)}
    >>> rows = 20 * source.encode_texts(["something red", "something blue"])
    >>> tuned = LinearClassifier(Origin("coop", ("fire", "ice"), source), rows, np.zeros(2))
    >>> emulated = emulate(tuned, target)
    >>> emulated.predict(RowImages(seen)).tolist(), emulated.encoders_asked
    ([0, 1], ('fake:32-1', 'fake:32-0'))
    """
    if isinstance(tuned, EmulatedClassifier):
        raise SettingError(
            f"{tuned.origin.method} is emulated already; its transfer() gives the same on {target.id}"
        )
    origin = Origin(f"{tuned.origin.method} + EFT", tuned.origin.class_names, target)
    return EmulatedClassifier(origin, tuned, template, strength)


def load_emulated(
    folder: str | os.PathLike[str], source: Encoder, target: Encoder
) -> EmulatedClassifier:
    """Read an emulated classifier, with the encoders it was learned on and is emulated on.

    Raises a FileFormatError if a file is damaged, holds something else, or is of other encoders.
    """
    path = Path(folder) / "method.json"
    record, arrays = read_record(folder)
    if record["kind"] != EmulatedClassifier.kind:
        raise FileFormatError(
            f"{path}: holds a {record['kind']!r}, which is not emulated; load it with load_fitted"
        )
    inside = {name.removeprefix(_INSIDE): array for name, array in arrays.items()}
    try:
        if record["encoder"]["fingerprint"] != target.fingerprint:
            raise FileFormatError(
                f"{path}: is emulated on {record['encoder'].get('id')!r}, and {target.id} is another "
                "encoder; load it with its own, then transfer it"
            )
        template, strength = str(record["template"]), float(record["strength"])
        tuned = from_record(dict(record["tuned"]), inside, source, path)
        origin = Origin(str(record["method"]), tuned.origin.class_names, target)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, FileFormatError):  # says already what is wrong
            raise
        raise FileFormatError(f"{path}: {error!r} is missing or not as it should be") from error
    return EmulatedClassifier(origin, tuned, template, strength)


def _source_id(fields: Mapping[str, Any]) -> str:
    try:
        return str(fields["tuned"]["encoder"]["id"])
    except (KeyError, TypeError):
        return "which the file does not say"

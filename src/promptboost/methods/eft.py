"""EFT: the change of logits by tuning one encoder, added to the zero-shot logits of another."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import SettingError
from promptboost.methods.base import FittedMethod, Images, Logits, Origin
from promptboost.methods.fitted import TextClassifier, filled
from promptboost.pool.templates import PLAIN_TEMPLATE


@dataclass(frozen=True)
class EmulatedClassifier(FittedMethod):
    """A classifier of one encoder (the source), emulated on another (the target); see :func:`emulate`.

    Logits are those of the target's zero-shot classifier, plus the difference of the tuned and the
    zero-shot classifier on the source, each at the logit scale of its own encoder. Terms that all classes
    share, such as SigLIP's bias, cancel.
    """

    kind: ClassVar[str] = "eft"
    origin: Origin
    tuned: FittedMethod
    template: str = PLAIN_TEMPLATE

    @property
    def source(self) -> Encoder:
        """The encoder of the fit, which embeds every image, too."""
        return self.tuned.origin.encoder

    @cached_property
    def _target_plain(self) -> TextClassifier:
        return TextClassifier(self.origin, filled([self.template], self.origin.class_names))

    @cached_property
    def _source_plain(self) -> TextClassifier:
        return self._target_plain.transfer(self.source)

    def logits(self, images: Images) -> Logits:
        """Return the logits on the target."""
        learned = self.tuned.logits(images) - self._source_plain.logits(images)
        scores = self._target_plain.logits(images) + learned
        return np.asarray(scores, dtype=np.float32)

    def transfer(self, encoder: Encoder) -> "EmulatedClassifier":
        """Return the classifier emulated on another target."""
        return replace(self, origin=replace(self.origin, encoder=encoder))

    @property
    def image_towers(self) -> tuple[str, ...]:
        """The target and the source, and the source again if its image tower was tuned."""
        passes = self.origin.encoder.id, self.source.id, *self.tuned.image_towers
        return tuple(dict.fromkeys(passes))


def emulate(
    tuned: FittedMethod, target: Encoder, template: str = PLAIN_TEMPLATE
) -> EmulatedClassifier:
    """Emulate a classifier on another encoder (EFT, re-implemented).

    Both encoders embed each image: see `image_towers`. `template` is that of the zero-shot classifiers.
    """
    if isinstance(tuned, EmulatedClassifier):
        raise SettingError(
            f"{tuned.origin.method} is emulated already; its transfer() gives the same on {target.id}"
        )
    origin = Origin(f"{tuned.origin.method} + EFT", tuned.origin.class_names, target)
    return EmulatedClassifier(origin, tuned, template)

"""Zero-shot classification: class names in one template, or in all of the pool's."""

from dataclasses import dataclass
from typing import ClassVar

from promptboost.encoders.base import Encoder
from promptboost.errors import SettingError
from promptboost.methods.base import FewShotSet, Group, Method, Transfer
from promptboost.methods.fitted import TextClassifier, filled
from promptboost.pool import PLAIN_TEMPLATE, PromptPool


@dataclass(frozen=True)
class ZeroShot(Method):
    """Class names in a template; nothing is learnt.

    Parameters
    ----------
    template : str
        A sentence with one ``{}``; ``"all"`` for the mean of the pool's templates; ``"dataset"``
        for the one that comes with a benchmark.

    Examples
    --------
    >>> from promptboost.testing import colour_shots
    >>> from promptboost.pool import build_pool
    >>> shots, encoder = colour_shots("red", "blue")
    >>> fitted = ZeroShot().fit(shots, build_pool(["red", "blue"]), encoder)
    >>> fitted.words()[0], fitted.predict(shots.images).tolist()
    ({'a photo of a red.': 1.0}, [0, 0, 1, 1])
    """

    name: ClassVar[str] = "zero-shot"
    group: ClassVar[Group] = Group.TEXT
    carries_over: ClassVar[Transfer] = Transfer.TEXT
    learns: ClassVar[bool] = False

    template: str = PLAIN_TEMPLATE

    def __post_init__(self) -> None:
        if self.template not in ("all", "dataset") and self.template.count("{}") != 1:
            raise SettingError(
                f"template is {self.template!r}, but must have one {{}} for the class name, or be "
                "'all' or 'dataset'"
            )

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that there is such a template."""
        if self.template == "all" and not pool.templates:
            raise SettingError(
                "its text is the mean of the pool's templates, and the pool has none; build a pool "
                f"with templates, or name one as in zero-shot?template={PLAIN_TEMPLATE}"
            )
        if self.template == "dataset" and shots.template is None:
            raise SettingError(
                "only a benchmark has a template of its own; for other images type "
                "zero-shot?template=YOUR {} TEMPLATE"
            )

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Fill the templates."""
        self.check(shots, pool, encoder)
        one = shots.template if self.template == "dataset" else self.template
        templates = pool.templates if self.template == "all" else (str(one),)
        return TextClassifier(self.origin(shots, encoder), filled(templates, shots.class_names))

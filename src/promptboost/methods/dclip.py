"""DCLIP: a class is what each of its descriptors says of it, and their similarities are averaged."""

from dataclasses import dataclass
from typing import ClassVar

from promptboost.encoders.base import Encoder
from promptboost.methods.base import Bank, FewShotSet, Group, Method, Transfer
from promptboost.methods.fitted import TextClassifier
from promptboost.pool import PromptPool
from promptboost.pool.combination import sentences
from promptboost.pool.readers.fragments import connect


@dataclass(frozen=True)
class DCLIP(Method):
    """A class with each of its descriptors: "owl, which has large eyes."; nothing is learnt.

    Re-implemented. An image's score is the mean of its cosines with a class's prompts, not its
    cosine with their mean. A class without descriptors is its name alone. Connectors are those of
    promptboost's reader of DCLIP files, which looks at whole words: "antlers" does not begin with
    "a". Every prompt ends with a dot, as the original's do for ImageNet only.

    Parameters
    ----------
    sources : str
        Names of description sources, with commas. Descriptors may be fragments ("a hooked beak")
        or sentences that the reader has made of them already.

    Examples
    --------
    >>> from promptboost.testing import colour_shots
    >>> from promptboost.pool import build_pool
    >>> shots, encoder = colour_shots("owl", "bat")
    >>> pool = build_pool(["owl", "bat"], descriptions={"DCLIP": {"owl": ["large eyes"]}})
    >>> DCLIP().fit(shots, pool, encoder).words()
    ({'owl, which has large eyes.': 1.0}, {'bat': 1.0})
    """

    name: ClassVar[str] = "dclip"
    group: ClassVar[Group] = Group.TEXT
    carries_over: ClassVar[Transfer] = Transfer.TEXT
    learns: ClassVar[bool] = False

    sources: str = "dclip"

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that the pool has descriptors."""
        sentences(pool, self.sources)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Write the prompts."""
        by_class = dict(zip(pool.class_names, sentences(pool, self.sources), strict=True))
        banks: list[Bank] = []
        for name in shots.class_names:
            plain = name.replace("_", " ")
            texts = [_prompt(plain, prompt.text) for prompt in by_class[name]] or [plain]
            banks.append(dict.fromkeys(texts, 1.0))
        return TextClassifier(self.origin(shots, encoder), tuple(banks), unit=False)


def _prompt(class_name: str, descriptor: str) -> str:
    """Connect a fragment to its class; leave what is connected already as it is."""
    if descriptor.lower().startswith(f"{class_name.lower()}, which "):
        return descriptor
    return connect(class_name, descriptor)

"""WaffleCLIP (Roth et al., 2023): class names with noise behind them, and what averaging is worth."""

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from promptboost.errors import SettingError
from promptboost.methods.base import Bank, FewShotSet, check_numbers
from promptboost.methods.sentence_means import SentenceMean
from promptboost.pool import PromptPool, fill
from promptboost.pool.templates import PLAIN_TEMPLATE

_EVERYDAY = """
    able about above across after again almost along already always among another around away
    because before behind below beside better between beyond bring build carry central certain
    change choice clear close common complete consider continue contrast correct couple current
    decide deeper degree different direct double during early either empty enough entire equal
    event every example expect explain familiar feeling figure final first follow formal former
    forward further general gentle given greater happen heavy higher however image important
    increase inside instead interest involve itself language large later latter learn letter level
    limit listen little local longer manner matter meaning measure member memory middle minute moment
    moreover nearly neither never normal nothing notice number object often opinion order other
    outside partly pattern perhaps person please possible prefer present prove public quality
    question quickly quiet rather reason recent regular relate remain repeat result return second
    several short should similar simple single slowly something special steady still strange strong
    subject sudden suggest surprise system theory thing thought through together toward travel
    twice under unusual upper usual value various version volume weight whether whole without wonder
"""

#: Words to draw from, of no subject; the authors have a longer list of their own.
WORDS = tuple(_EVERYDAY.split())


@dataclass(frozen=True)
class WaffleCLIP(SentenceMean):
    """A class name with random words or letters: "a photo of an owl, which has wond thin.".

    Re-implemented. Every draw is a pair, of words and of letters, as long as the names of the classes
    are on the average: as many words, cut to their mean length, and as many groups of letters. All
    classes have the same draws. An image's score is the mean of its cosines with a class's prompts.
    No image is looked at and no pool.

    The authors draw words from a list of their own and letters from an LLM's descriptors; here the
    words are :data:`WORDS` and the letters a to z. They write "which is" before what begins with "a".

    Parameters
    ----------
    pairs : int
        Pairs of draws: half as many as a class has prompts.
    template : str
        A sentence with one ``{}``; the draws are put before its full stop.
    seed : int
        Decides the draws.

    Examples
    --------
    >>> WaffleCLIP(pairs=1, seed=5).noises(["barn owl", "king penguin"])
    ['pers simi', 'avmn, qhzb']
    """

    name: ClassVar[str] = "waffle"
    unit: ClassVar[bool] = False

    pairs: int = 15
    template: str = PLAIN_TEMPLATE
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, counts=("pairs",))
        if self.template.count("{}") != 1:
            raise SettingError(
                f"template is {self.template!r}, but must have one {{}} for the class name"
            )

    def banks(self, shots: FewShotSet, pool: PromptPool) -> tuple[Bank, ...]:
        """Put the draws behind the name of each class."""
        stem = self.template.rstrip(".")
        # What is drawn twice counts twice.
        counts = Counter(f"{stem}, which has {noise}." for noise in self.noises(shots.class_names))
        return tuple(
            {fill(text, name): float(count) for text, count in counts.items()}
            for name in shots.class_names
        )

    def noises(self, class_names: Sequence[str]) -> list[str]:
        """Draw words and letters, a pair after the other, as long as the names are."""
        names = [name.replace("_", " ").split() for name in class_names]
        words = max(round(float(np.mean([len(name) for name in names]))), 1)
        length = max(round(float(np.mean([np.mean([*map(len, name)]) for name in names]))), 1)
        groups = round(float(np.mean([len(name) - 1 for name in names]))) + 1
        letters = int(np.ceil(np.mean([max(map(len, name)) for name in names])))
        # The authors round up to a multiple of the groups, and one further where it is one.
        each = letters // groups + 1
        rng = np.random.default_rng(self.seed)
        noises: list[str] = []
        for _ in range(self.pairs):
            drawn = rng.choice(WORDS, size=words)
            noises.append(" ".join(str(word)[:length] for word in drawn))
            rows = rng.choice(list(string.ascii_lowercase), size=(groups, each))
            noises.append(", ".join("".join(row) for row in rows))
        return noises

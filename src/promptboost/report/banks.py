"""The prompts of each class as rows to read."""

from collections.abc import Iterator
from dataclasses import dataclass

from promptboost.ensemble import PromptEnsemble

__all__ = ["Bank", "PromptRow", "class_banks", "rows_per_class"]

# A row is about 600 bytes; a page should stay under three million.
_ROWS_IN_ALL = 3000


@dataclass(frozen=True)
class PromptRow:
    """One prompt of one class."""

    text: str
    weight: float
    copies: int
    rounds: tuple[int, ...]


@dataclass(frozen=True)
class Bank:
    """The heaviest prompts of a class, and what they leave out."""

    class_name: str
    rows: tuple[PromptRow, ...]
    prompts: int
    weight_shown: float

    @property
    def left_out(self) -> int:
        """How many prompts are not among the rows."""
        return self.prompts - len(self.rows)


def rows_per_class(n_classes: int) -> int:
    """Choose how many prompts of a class to show, so that a page of many classes stays usable.

    Examples
    --------
    >>> rows_per_class(20), rows_per_class(200), rows_per_class(1000)
    (25, 15, 3)
    """
    return max(3, min(25, _ROWS_IN_ALL // n_classes))


def class_banks(ensemble: PromptEnsemble, most: int) -> Iterator[Bank]:
    """Give the prompts of every class, heaviest first.

    Parameters
    ----------
    ensemble : PromptEnsemble
        The fitted text.
    most : int
        How many rows a class may have.

    Examples
    --------
    >>> from promptboost.ensemble import Round
    >>> one = Round("a {}", {"cat": {"a cat": 3, "a tabby": 1}, "dog": {"a dog": 1}}, 0.1, 0.1)
    >>> bank, _ = class_banks(PromptEnsemble(("cat", "dog"), (one, one)), most=1)
    >>> bank.rows, bank.left_out
    ((PromptRow(text='a cat', weight=0.75, copies=6, rounds=(1, 2)),), 1)
    """
    for name in ensemble.class_names:
        weights = ensemble.prompts(name)
        heaviest = list(weights.items())[:most]
        entered: dict[str, list[int]] = {text: [] for text, _ in heaviest}
        copies = dict.fromkeys(entered, 0)
        for i, item in enumerate(ensemble.rounds, start=1):
            for text in entered.keys() & item.banks[name].keys():
                entered[text].append(i)
                copies[text] += item.banks[name][text]
        yield Bank(
            class_name=name,
            rows=tuple(
                PromptRow(text, weight, copies[text], tuple(entered[text]))
                for text, weight in heaviest
            ),
            prompts=len(weights),
            weight_shown=sum(weight for _, weight in heaviest),
        )

"""Class names behind learnt tokens: from a prefix of token embeddings to one row a class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from promptboost.encoders.towers import DifferentiableText
from promptboost.errors import SettingError
from promptboost.pool import fill

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PromptedClasses", "ending", "nearest"]


def ending(name: str) -> str:
    """Give what follows the learnt tokens of a class: its name and a full stop.

    Examples
    --------
    >>> ending("basset_hound")
    'basset hound.'
    """
    return fill("{}.", name)


@dataclass(frozen=True)
class PromptedClasses:
    """The prompts ``[start] [learnt tokens] [class name] [.] [end]`` of all classes.

    Attributes
    ----------
    tower : DifferentiableText
        What reads them.
    start : tensor, shape (s, d)
        Embeddings of the start tokens.
    endings : tensor, shape (U, S, d)
        Embeddings of each distinct class name and what follows, padded to the longest.
    lengths : tensor of int, shape (U,)
        How many of these tokens count.
    which : tensor of int, shape (K,)
        The ending of each class: classes of the same name are read once.

    Examples
    --------
    >>> from promptboost.encoders.towers import open_tower
    >>> from promptboost.testing import FakeEncoder
    >>> tower = open_tower(FakeEncoder(dim=8))
    >>> classes = PromptedClasses.of(tower, ["red bird", "ship", "ship"], tokens=2)
    >>> classes.endings.shape[0], tuple(classes.rows(tower.vocabulary[1:3]).shape)
    (2, (3, 8))
    """

    tower: DifferentiableText
    start: "Tensor"
    endings: "Tensor"
    lengths: "Tensor"
    which: "Tensor"

    @classmethod
    def of(cls, tower: DifferentiableText, class_names: Sequence[str], tokens: int) -> Self:
        """Tokenise the class names.

        Parameters
        ----------
        tower : DifferentiableText
            What reads the prompts.
        class_names : sequence of str
            The classes.
        tokens : int
            How many learnt tokens there will be.

        Raises
        ------
        SettingError
            If the tower does not read that many tokens.
        """
        import torch

        texts = list(dict.fromkeys(map(ending, class_names)))
        own = [torch.tensor([*tower.tokenize(t), *tower.end], dtype=torch.long) for t in texts]
        lengths = torch.tensor([len(ids) for ids in own])
        room = tower.context_length - len(tower.start) - int(lengths.max())
        if tokens > room:
            longest = texts[int(lengths.argmax())]
            raise SettingError(
                f"{tokens} learnt tokens and {longest!r} are more than the {tower.context_length} "
                f"tokens this encoder reads; at most {room} can be learnt"
            )
        vocabulary = tower.vocabulary.float()
        ids = torch.nn.utils.rnn.pad_sequence(own, batch_first=True).to(vocabulary.device)
        which = torch.tensor([texts.index(ending(name)) for name in class_names])
        return cls(
            tower,
            vocabulary[list(tower.start)],
            vocabulary[ids],
            lengths.to(vocabulary.device),
            which.to(vocabulary.device),
        )

    def rows(self, learnt: "Tensor") -> "Tensor":
        """Give one row of length one for each class, (K, D), differentiable in the learnt tokens.

        Parameters
        ----------
        learnt : tensor, shape (M, d)
            Embeddings that stand between the start tokens and the class names.
        """
        import torch

        beginning = torch.cat([self.start, learnt])
        return self.tower.encode(beginning, self.endings, self.lengths)[self.which]


def nearest(vectors: "Tensor", vocabulary: "Tensor") -> tuple["Tensor", "Tensor"]:
    """Find the row of a vocabulary with the highest cosine to each vector.

    Parameters
    ----------
    vectors : tensor, shape (n, d)
        Of any length.
    vocabulary : tensor, shape (V, d)
        Rows of length one.

    Returns
    -------
    positions, cosines : tensor, shape (n,)
        Which row, and how near.
    """
    import torch

    with torch.no_grad():
        units = torch.nn.functional.normalize(vectors, dim=-1)
        best: Any = (units @ vocabulary.T).max(dim=1)
    return best.indices, best.values

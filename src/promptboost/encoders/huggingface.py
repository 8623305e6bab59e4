"""Encoders of transformers (CLIP, SigLIP, MetaCLIP 2 and others) and of sentence-transformers."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, batches, report_truncated, unit_rows
from promptboost.encoders.dual_encoder import DualEncoder, Tokens
from promptboost.encoders.graph import TowerPair
from promptboost.encoders.hub_files import model_folder
from promptboost.encoders.runtime import fingerprint, hash_files, loading, pick_device
from promptboost.errors import EncoderError

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

#: Files of a repository; weights in other formats could run code.
FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
_TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
# Towers were trained with a scale between 10 and 120; CLIP's is 100.
_USUAL_SCALE = 100.0
# The factor of cosines in the losses of sentence-transformers, for models that contain none.
_USUAL_LOSS_SCALE = 20.0


class TransformersEncoder(DualEncoder):
    """A model of transformers with image and text features, loaded without code from its repository.

    Created by :func:`~promptboost.load_encoder` as ``hf:organization/model`` or ``hf:FOLDER``.
    """

    def __init__(
        self, source: str, device: str | None = None, precision: str | None = None
    ) -> None:
        self.id = name = f"hf:{source}"
        folder = model_folder(name, source, FILES)
        import torch
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        self.device = pick_device(device)
        self.batch_size = 64 if self.device.type == "cpu" else 256
        self.precision = precision or ("fp16" if self.device.type == "cuda" else "fp32")
        kind = _TYPES[self.precision]
        image_processors: Any = AutoImageProcessor
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with loading(name):
            model: Any = AutoModel.from_pretrained(
                folder, use_safetensors=True, dtype=getattr(torch, kind), **options
            )
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
            self.image_processor: Any = image_processors.from_pretrained(folder, **options)
        if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
            raise EncoderError(
                f"{name} is a {type(model).__name__} without image and text features"
            )
        self.model = model.eval().requires_grad_(False).to(self.device)
        self.model_type = str(model.config.model_type)
        text = getattr(model.config, "text_config", model.config)
        positions = getattr(text, "max_position_embeddings", math.inf)
        self.context_length = int(min(self.tokenizer.model_max_length, positions))
        self.logit_scale = _logit_scale_of(model, _USUAL_SCALE)
        bias = getattr(model, "logit_bias", None)
        self.logit_bias = 0.0 if bias is None else float(bias.float().mean())
        self.fingerprint = fingerprint(
            {
                "kind": "transformers",
                "files": hash_files(folder, FILES),
                "preprocessing": type(self.image_processor).__name__,
                "precision": self.precision,
            }
        )
        self.dim = self._text_rows(*self._tokenize(["a cat"])).shape[1]

    def tower_pair(self) -> TowerPair:
        """Return both towers with tokenizer and preprocessing, for ONNX files."""
        import torch
        from PIL import Image

        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        image = self.preprocess(Image.new("RGB", (64, 64)))
        if backend is None or list(image) != ["pixel_values"]:
            raise EncoderError(
                f"{self.id} cannot be written as ONNX: it needs a tokenizer.json and images of one size"
            )
        tokens, mask = map(torch.from_numpy, self._tokenize(["a cat", "a bird"]))
        return TowerPair(
            vision=lambda pixels: _features(self.model.get_image_features(pixel_values=pixels)),
            text=lambda *inputs: _features(self.model.get_text_features(*inputs)),
            examples=(
                torch.cat([image["pixel_values"]] * 2),
                *((tokens,) if self.is_siglip else (tokens, mask)),
            ),
            configs={
                "config": {
                    **self.model.config.to_dict(),
                    "_name_or_path": "",  # a place on this machine
                    "logit_scale": self.logit_scale,
                    "logit_bias": self.logit_bias,
                },
                "preprocessor_config": self.image_processor.to_dict(),
                "tokenizer_config": {
                    "model_max_length": self.context_length,
                    "pad_token": self.tokenizer.pad_token,
                    "padding_side": self.tokenizer.padding_side,
                },
            },
            tokenizer=backend.to_str(),
            trims=self.trims,
        )

    def _tokenize(self, texts: list[str]) -> tuple[Tokens, Tokens]:
        read = self.tokenizer(
            texts,
            padding="max_length",
            truncation=True,
            max_length=self.context_length,
            return_attention_mask=True,
            return_tensors="np",
        )
        return read["input_ids"].astype(np.int64), read["attention_mask"].astype(np.int64)

    def _counts(self, texts: list[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer(texts, verbose=False).input_ids] if texts else []

    def _text_rows(self, tokens: Tokens, present: Tokens) -> UnitRows:
        import torch

        inputs = {"input_ids": torch.from_numpy(tokens).to(self.device)}
        if not self.is_siglip:
            inputs["attention_mask"] = torch.from_numpy(present).to(self.device)
        return self._rows(self.model.get_text_features, inputs)

    def preprocess(self, image: "Image") -> Any:
        """Return what the image processor makes of an image, a mapping of tensors."""
        return self.image_processor(images=[image.convert("RGB")], return_tensors="pt")

    def encode_preprocessed(self, inputs: Sequence[Any]) -> UnitRows:
        """Embed what `preprocess` returned as unit rows, in the order given."""
        import torch

        joined = {name: torch.cat([entry[name] for entry in inputs]) for name in inputs[0]}
        joined["pixel_values"] = joined["pixel_values"].to(self.model.dtype)
        on_device = {name: tensor.to(self.device) for name, tensor in joined.items()}
        return self._rows(self.model.get_image_features, on_device)

    def _rows(self, features: Any, inputs: Any) -> UnitRows:
        import torch

        with torch.inference_mode():
            rows = _features(features(**inputs))
        return unit_rows(rows.float().cpu().numpy())


class SentenceTransformerEncoder:
    """A model of sentence-transformers, loaded without code from its repository.

    Created by :func:`~promptboost.load_encoder` as ``st:organization/model`` or ``st:FOLDER``.
    """

    causal_text = False
    batch_size = 64

    def __init__(self, source: str, device: str | None = None) -> None:
        self.id = name = f"st:{source}"
        folder = model_folder(name, source, FILES)
        from sentence_transformers import SentenceTransformer

        with loading(name):
            model: Any = SentenceTransformer(
                str(folder),
                device=str(pick_device(device)),
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
            )
        self.model = model.eval()
        if not (model.supports("image") and model.supports("text")):
            raise EncoderError(f"{name} does not embed both images and texts")
        network = model.transformers_model
        if str(getattr(getattr(network, "config", None), "model_type", "")).startswith("siglip"):
            raise EncoderError(
                f"{name} is a SigLIP model, whose texts sentence-transformers does not pad as in its "
                f"training. Use hf:{source}"
            )
        self.context_length = int(model.max_seq_length or 512)
        self.logit_scale = _logit_scale_of(network, _USUAL_LOSS_SCALE)
        self.fingerprint = fingerprint(
            {"kind": "sentence-transformers", "files": hash_files(folder, FILES)}
        )
        self.dim = self._encode(["a cat"]).shape[1]

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, in the order given."""
        if len(texts) == 0:
            return np.zeros((0, self.dim), dtype=np.float32)
        report_truncated(texts, self.count_tokens(texts), self.context_length, self.id)
        return self._encode(list(texts))

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed images as unit rows, in the order given."""
        blocks = [np.zeros((0, self.dim), dtype=np.float32)]
        for batch in batches(images, self.batch_size):
            blocks.append(self._encode([image.convert("RGB") for image in batch]))
        return np.concatenate(blocks)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, with start and end tokens, before any truncation."""
        if len(texts) == 0:
            return np.zeros(0, dtype=np.int64)
        ids = self.model.tokenizer(list(texts), verbose=False).input_ids
        return np.array([len(row) for row in ids], dtype=np.int64)

    def _encode(self, inputs: "list[str] | list[Image]") -> UnitRows:
        rows = self.model.encode(inputs, batch_size=self.batch_size, show_progress_bar=False)
        return unit_rows(rows)


def _logit_scale_of(network: Any, default: float) -> float:
    """Return the factor for cosines that a network was trained with."""
    scale = getattr(network, "logit_scale", None)
    return default if scale is None else float(scale.detach().float().exp().mean())


def _features(outputs: Any) -> "torch.Tensor":
    # Older versions return the features themselves.
    rows: torch.Tensor = getattr(outputs, "pooler_output", outputs)
    return rows

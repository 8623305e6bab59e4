"""Encoders of ONNX files in the layout of Transformers.js, which need neither torch nor transformers."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, batches, unit_rows
from promptboost.encoders.dual_encoder import DualEncoder, Tokens
from promptboost.encoders.hub_files import model_folder
from promptboost.encoders.runtime import (
    fingerprint,
    first_line,
    hash_files,
    onnx_session,
    read_config,
)
from promptboost.errors import EncoderError
from promptboost.threads import thread_count

if TYPE_CHECKING:
    from PIL.Image import Image

#: Files of a repository. Quantized towers are not downloaded: their embeddings differ, and convolutions
#: in 8 bits are many times slower on processors.
FILES = ("*.json", "onnx/text_model.onnx*", "onnx/vision_model.onnx*")
# In the order of preference, for a folder without towers in full precision.
_PRECISIONS = ("", "_fp16", "_quantized", "_int8", "_uint8", "_q4", "_q4f16", "_bnb4")
_OUTPUTS = ("image_embeds", "text_embeds", "pooler_output")
_INPUTS = {"pixel_values", "input_ids", "attention_mask"}
_TYPES: dict[str, Any] = {"tensor(float16)": np.float16, "tensor(int32)": np.int32}
# CLIP's. Configurations of Transformers.js contain none, those of `promptboost export` do.
_USUAL_SCALE = 100.0
# Tokenizers without a limit have a very large one.
_LARGEST_CONTEXT = 100_000
# Images of one run of the tower; the threads make several runs at a time.
_BATCH = 4


class OnnxEncoder(DualEncoder):
    """Two towers as ONNX graphs, with the tokenizer and the preprocessing of their folder.

    Created by :func:`~promptboost.load_encoder` as ``onnx:FOLDER`` or ``onnx:organization/model``. The
    text tower is loaded with the first text.
    """

    batch_size = 64

    def __init__(self, source: str, device: str | None = None) -> None:
        self.id = name = f"onnx:{source}"
        if device not in (None, "cpu"):
            raise EncoderError(
                f"There is no device {device!r} for {name}: ONNX encoders run on the processor"
            )
        folder = model_folder(name, source, FILES)
        vision, self._text_file = (
            _tower_file(folder, tower, name) for tower in ("vision_model", "text_model")
        )
        try:
            self._read_configuration(folder)
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # of any JSON
            raise EncoderError(f"Cannot load {name}: its configuration lacks {error}") from error
        self._vision = _Tower(vision, name, threads=1)
        self.dim = self._vision.dim
        files = ("*.json", f"onnx/{vision.name}*", f"onnx/{self._text_file.name}*")
        self.fingerprint = fingerprint({"kind": "onnx", "files": hash_files(folder, files)})

    def _read_configuration(self, folder: Path) -> None:
        config, tokens = (
            read_config(folder / file) for file in ("config.json", "tokenizer_config.json")
        )
        self._preprocessor = Preprocessor(read_config(folder / "preprocessor_config.json"))
        self.model_type = str(config["model_type"])
        self.logit_scale = float(config.get("logit_scale", _USUAL_SCALE))
        self.logit_bias = float(config.get("logit_bias", 0.0))
        text = config.get("text_config", config)
        limits = (tokens.get("model_max_length"), text.get("max_position_embeddings"))
        finite = [int(limit) for limit in limits if limit and limit < _LARGEST_CONTEXT]
        self.context_length = min(finite, default=64 if self.is_siglip else 77)
        self._tokenizer, self._counter = (
            _tokenizer(folder / "tokenizer.json", self.id) for _ in range(2)
        )
        padding = self._tokenizer.padding or {}
        if (token := tokens.get("pad_token")) is not None:
            token = token["content"] if isinstance(token, dict) else token
            padding["pad_id"] = self._tokenizer.token_to_id(token)
        number = padding.get("pad_id", text.get("pad_token_id", 0))
        self._tokenizer.enable_padding(
            length=self.context_length,
            pad_id=int(number),
            direction=str(tokens.get("padding_side", "right")),
        )
        self._tokenizer.enable_truncation(self.context_length)
        self._counter.no_padding()
        self._counter.no_truncation()

    @cached_property
    def _text(self) -> "_Tower":
        tower = _Tower(self._text_file, self.id)
        length = tower.inputs["input_ids"].shape[1]
        if isinstance(length, int) and length != self.context_length:
            raise EncoderError(
                f"the text tower of {self.id} reads {length} tokens, its configuration has "
                f"{self.context_length}"
            )
        if tower.dim != self.dim:
            raise EncoderError(
                f"the towers of {self.id} embed in {self.dim} and {tower.dim} dimensions: they were "
                "exported without the projection into their joint space"
            )
        return tower

    def _tokenize(self, texts: list[str]) -> tuple[Tokens, Tokens]:
        read = self._tokenizer.encode_batch(texts)
        tokens, present = (
            [getattr(text, name) for text in read] for name in ("ids", "attention_mask")
        )
        return np.array(tokens, dtype=np.int64), np.array(present, dtype=np.int64)

    def _counts(self, texts: list[str]) -> list[int]:
        return [len(text.ids) for text in self._counter.encode_batch(texts)]

    def _text_rows(self, tokens: Tokens, present: Tokens) -> UnitRows:
        attended = np.ones_like(present) if self.is_siglip else present
        return self._text.rows(input_ids=tokens, attention_mask=attended)

    def preprocess(self, image: "Image") -> NDArray[np.float32]:
        """Return the pixels that the image tower takes."""
        return self._preprocessor(image.convert("RGB"))

    def encode_preprocessed(self, inputs: Sequence[NDArray[np.float32]]) -> UnitRows:
        """Embed what `preprocess` returned as unit rows, in the order given."""
        # One thread for a batch and several batches at a time: threads of one batch wait for each other
        # at every layer.
        with ThreadPoolExecutor(thread_count()) as threads:
            rows = threads.map(
                lambda pixels: self._vision.rows(pixel_values=np.stack(pixels)),
                batches(inputs, _BATCH),
            )
            return np.concatenate([*rows])


class _Tower:
    """A graph from pixels or tokens to embeddings."""

    def __init__(self, file: Path, name: str, threads: int | None = None) -> None:
        try:
            self._session = onnx_session(file, threads)
        except Exception as error:  # what onnxruntime raises has no common base
            raise EncoderError(f"Cannot load {name}: {file.name}: {first_line(error)}") from error
        self.inputs = {entry.name: entry for entry in self._session.get_inputs()}
        outputs = {entry.name: entry for entry in self._session.get_outputs()}
        output = next((output for output in _OUTPUTS if output in outputs), None)
        if output is None or not self.inputs.keys() <= _INPUTS:
            raise EncoderError(
                f"Cannot load {name}: {file.name} maps {', '.join(self.inputs)} to "
                f"{', '.join(outputs)}; needed are pixel_values or input_ids, and {' or '.join(_OUTPUTS)}"
            )
        self._output = output
        self.dim = int(outputs[output].shape[1])

    def rows(self, **arrays: NDArray[Any]) -> UnitRows:
        """Return embeddings of length one; arrays that the graph does not take are left out."""
        feeds = {
            name: arrays[name].astype(_TYPES.get(entry.type, arrays[name].dtype), copy=False)
            for name, entry in self.inputs.items()
        }
        (rows,) = self._session.run([self._output], feeds)
        return unit_rows(rows)


class Preprocessor:
    """Pixels of an image as ``preprocessor_config.json`` describes them, with Pillow and numpy.

    Equal to the image processors of transformers that use Pillow, and close to those of torchvision,
    which scale images a little differently.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        crop = config.get("crop_size") if config.get("do_center_crop") else None
        size = config.get("size", 224) if config.get("do_resize", True) else None
        if isinstance(size, int):
            size = {"shortest_edge": size} if crop else {"height": size, "width": size}
        if size is not None and not size.keys() & {"shortest_edge", "height"}:
            raise KeyError("a size with a shortest edge, or with height and width")
        self._size = size
        self._crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
        # Of open_clip's croppings; those of transformers round down.
        self._rounds = config.get("center_crop_rounding") == "half_even"
        self._resample = int(config.get("resample", 3))
        scale = (
            float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
        )
        normalizes = config.get("do_normalize", True)
        mean, std = (
            np.array(config[key] if normalizes else default, dtype=np.float32).reshape(-1, 1, 1)
            for key, default in (("image_mean", 0.0), ("image_std", 1.0))
        )
        self._factor, self._shift = np.float32(scale) / std, mean / std

    def __call__(self, image: "Image") -> NDArray[np.float32]:
        """Return the pixels of an RGB image, (3, height, width)."""
        if self._size is not None:
            image = image.resize(_scaled(self._size, *image.size), self._resample)
        if self._crop is not None:
            width, height = self._crop["width"], self._crop["height"]
            left, top = (
                round(border / 2) if self._rounds else border // 2
                for border in (image.width - width, image.height - height)
            )
            image = image.crop((left, top, left + width, top + height))
        pixels = np.asarray(image, dtype=np.float32).transpose(2, 0, 1)
        normalized: NDArray[np.float32] = pixels * self._factor - self._shift
        return normalized


def _scaled(size: Mapping[str, int], width: int, height: int) -> tuple[int, int]:
    if "height" in size:
        return size["width"], size["height"]
    side, shorter = size["shortest_edge"], min(width, height)
    return int(side * width / shorter), int(side * height / shorter)


def _tokenizer(file: Path, name: str) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing more exact
        raise EncoderError(f"Cannot load {name}: {file.name}: {first_line(error)}") from error


def _tower_file(folder: Path, tower: str, name: str) -> Path:
    files = (folder / "onnx" / f"{tower}{precision}.onnx" for precision in _PRECISIONS)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise EncoderError(f"{name} has no onnx/{tower}.onnx")
    return file

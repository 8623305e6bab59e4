"""Encoders of open_clip, CLIP and its many descendants: from a name to a model with its preprocessing."""

import json
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import HALF_TOLERANCE, UnitRows, unit_rows
from promptboost.encoders.dual_encoder import DualEncoder, Tokens
from promptboost.encoders.graph import ImageGraph, TowerPair, traced_graph
from promptboost.encoders.hub_files import (
    check_hub,
    from_cache_alone,
    in_hub_cache,
    status_of_hub,
)
from promptboost.encoders.openclip.onnx_pair import onnx_pair
from promptboost.encoders.openclip.tower import OpenClipTower, TextTower
from promptboost.encoders.registry import unknown_name
from promptboost.encoders.runtime import (
    fingerprint,
    first_line,
    hash_tensors,
    pick_device,
    read_config,
)
from promptboost.errors import EncoderError, MissingExtraError, install_command

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

_PREPROCESSING = ("mean", "std", "interpolation", "resize_mode")


class OpenClipEncoder(DualEncoder):
    """A model of open_clip, with its own tokenizer and preprocessing.

    Created by :func:`~promptboost.load_encoder`. No method changes the weights of `model`.
    """

    model_type = "open_clip"

    def __init__(
        self,
        model: Any,
        preprocess: Any,
        tokenizer: Any,
        *,
        id: str,
        fingerprint: str,
        precision: str = "fp32",
        batch_size: int = 64,
    ) -> None:
        self.id = id
        self.fingerprint = fingerprint
        self.precision = precision
        self.batch_size = batch_size
        self.context_length = int(tokenizer.context_length)
        self.logit_scale = float(model.logit_scale.detach().float().exp().mean())
        self.model = model
        self.device: torch.device = model.logit_scale.device
        self._transform = preprocess
        self.tokenizer = tokenizer
        self._tower = TextTower(model)
        self.causal_text = self._tower.is_causal
        # Trimming swaps tensors of the tower for the time of a batch.
        self._lock = threading.Lock()
        self.tolerance = HALF_TOLERANCE.get(precision, 1e-5)
        self.dim = self._rows(self.tokenizer(["a photo of a cat"])).shape[1]
        self.trims = self.causal_text and super().trims

    def preprocess(self, image: "Image") -> "torch.Tensor":
        """Return the pixels that the image tower takes."""
        pixels: torch.Tensor = self._transform(image)
        return pixels

    def encode_preprocessed(self, inputs: "Sequence[torch.Tensor]") -> UnitRows:
        """Embed what `preprocess` returned as unit rows, in the order given."""
        import torch

        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.precision, torch.float32)
        pixels = torch.stack(list(inputs)).to(self.device, kind)
        with torch.inference_mode():
            rows = self.model.encode_image(pixels, normalize=True)
        return unit_rows(rows.float().cpu().numpy())

    def _counts(self, texts: list[str]) -> list[int]:
        if hasattr(self.tokenizer, "encode"):  # open_clip's own, without start and end tokens
            return [len(self.tokenizer.encode(text)) + 2 for text in texts]
        clean = [self.tokenizer.clean_fn(text) for text in texts]
        return [len(ids) for ids in self.tokenizer.tokenizer(clean, verbose=False).input_ids]

    def text_tower(self) -> OpenClipTower:
        """Return the text tower for gradients."""
        return OpenClipTower(self.model, self.tokenizer, self.id)

    def image_graph(self) -> ImageGraph:
        """Return the image tower and the normalization of pixels as a graph."""
        import torch

        steps = {type(step).__name__: step for step in self._transform.transforms}
        if "Normalize" not in steps:
            raise EncoderError("the preprocessing of this model has no Normalize step")
        mean, std = (
            [*map(float, values)] for values in (steps["Normalize"].mean, steps["Normalize"].std)
        )
        scale, shift = 1 / (255 * torch.tensor(std)), torch.tensor(mean) / torch.tensor(std)

        def tower(pixels: torch.Tensor) -> torch.Tensor:
            values = (pixels.float() * scale - shift).permute(0, 3, 1, 2)
            rows: torch.Tensor = self.model.encode_image(values, normalize=True)
            return rows

        size = self.model.visual.image_size
        height, width = size if isinstance(size, tuple | list) else (size, size)
        example = torch.zeros((2, height, width, 3), dtype=torch.uint8)
        graph = traced_graph(tower, (example,), {"pixels": {0: "n"}}, "embeddings")
        facts = dict(getattr(self.model.visual, "preprocess_cfg", {}))
        preprocessing = {
            "size": [height, width],
            "crop": str(facts.get("resize_mode", "shortest")),
            "interpolation": str(facts.get("interpolation", "bicubic")),
            "colors": "RGB",
            "values": "uint8, 0 to 255; normalized inside",
            "mean": mean,
            "std": std,
            "shape": ["n", height, width, 3],
        }
        return ImageGraph(graph, preprocessing)

    def tower_pair(self) -> TowerPair:
        """Return both towers with tokenizer and preprocessing, for ONNX files."""
        return onnx_pair(self.model, self._transform, self.tokenizer)

    def pixels(self, image: "Image") -> NDArray[np.uint8]:
        """Return an image as it is before its values are normalized."""
        for step in self._transform.transforms:
            if type(step).__name__ in ("ToTensor", "MaybeToTensor", "Normalize"):
                break
            image = step(image)
        return np.asarray(image.convert("RGB"))

    def _tokenize(self, texts: list[str]) -> tuple[Any, Tokens]:
        tokens = self.tokenizer(texts)
        present = np.ones(tokens.shape, dtype=np.int64)
        if self.causal_text:
            present = present * (np.arange(tokens.shape[1]) < self._tower.lengths(tokens)[:, None])
        return tokens, present

    def _text_rows(self, tokens: "torch.Tensor", present: Tokens) -> UnitRows:
        with self._lock:
            return self._rows(tokens)

    def _rows(self, tokens: "torch.Tensor") -> UnitRows:
        import torch

        with torch.inference_mode():
            rows = self._tower(tokens.to(self.device))
        return unit_rows(rows.float().cpu().numpy())


class UnknownActivationWarning(UserWarning):
    """It is unknown whether a checkpoint was trained with QuickGELU."""


@dataclass(frozen=True)
class OpenClipName:
    """Where a model's architecture and weights come from."""

    spelling: str  # what the user typed
    architecture: str  # or hf-hub:org/name
    tag: str = ""  # of published weights
    file: Path | None = None  # a checkpoint on disk


def load_openclip(
    spelling: str, device: str | None = None, precision: str | None = None
) -> OpenClipEncoder:
    """Load an open_clip model as an encoder, by default in half precision on CUDA."""
    name = _parsed(spelling)
    where = pick_device(device)
    precision = precision or ("fp16" if where.type == "cuda" else "fp32")
    if is_here(name.spelling):
        try:
            with from_cache_alone():
                return _loaded(name, where, precision)
        except EncoderError:
            # Perhaps some files are missing: they can be downloaded if the hub answers.
            if status_of_hub() is None:
                raise
    return _loaded(name, where, precision)


def _parsed(name: str) -> OpenClipName:
    """Return where a model comes from; raise if there is no such model, or it is out of reach."""
    in_hub = name.startswith("hf-hub:")
    if in_hub and name.partition(":")[2].count("/") != 1:
        raise EncoderError(f"{name!r} should be hf-hub:organization/model")
    architecture, _, path = name.partition("@")
    # Fail before open_clip is imported, which takes seconds. Programs that imported it may have
    # registered other architectures.
    if in_hub and not path:
        _check_reach(name)
    elif "open_clip" not in sys.modules and (known := _listed_architectures()):
        if path and architecture not in known:
            raise unknown_name(architecture, known, "architecture")
        if not path and name.rpartition("/")[0] not in known:
            raise unknown_name(name)
    from open_clip import list_models, list_pretrained

    if path:
        if architecture not in list_models():
            raise unknown_name(architecture, list_models(), "architecture")
        file = Path(path).expanduser()
        if not file.is_file():
            raise EncoderError(f"There is no checkpoint {file}, named by {name!r}")
        return OpenClipName(name, architecture, file=file)
    if in_hub:
        return OpenClipName(name, name)
    architecture, _, tag = name.rpartition("/")
    if (architecture, tag) not in (published := list_pretrained()):
        raise unknown_name(name, ["/".join(pair) for pair in published])
    _check_reach(name)
    return OpenClipName(name, architecture, tag)


def _check_reach(name: str) -> None:
    """Raise within seconds if a model is neither on this machine nor at a hub that answers."""
    if not is_here(name):
        check_hub(name, "Get the file elsewhere and type ARCHITECTURE@FILE")


def is_here(name: str) -> bool:
    """Return whether weights and tokenizer of an open_clip model are on this machine."""
    if name.startswith("hf-hub:") and find_spec("open_clip"):
        return in_hub_cache(name.removeprefix("hf-hub:"))
    try:
        import open_clip
    except ImportError:
        return True  # loading raises an error with what is missing
    if "@" in name:
        architecture = name.partition("@")[0]
        return _tokenizer_is_here(open_clip.get_model_config(architecture))
    architecture, _, tag = name.rpartition("/")
    if (architecture, tag) not in open_clip.list_pretrained():
        return True  # there is no such model: loading raises an error
    published = open_clip.get_pretrained_cfg(architecture, tag)
    url, repository = published.get("url", ""), published.get("hf_hub", "").rstrip("/")
    files = [Path(published["file"])] if published.get("file") else []
    if url:  # where open_clip keeps what is not from the hub
        files.append(Path("~/.cache/clip").expanduser() / url.rsplit("/", 1)[-1])
    in_cache = bool(repository) and in_hub_cache("/".join(repository.split("/")[:2]))
    is_there = in_cache or any(map(Path.is_file, files))
    return is_there and _tokenizer_is_here(open_clip.get_model_config(architecture))


def _listed_architectures() -> set[str]:
    """Return open_clip's own architectures, without importing it."""
    spec = find_spec("open_clip")
    folder = Path(spec.origin if spec and spec.origin else "").parent
    return {file.stem for file in folder.glob("model_configs/*.json")}


def _tokenizer_is_here(settings: dict[str, Any] | None) -> bool:
    repository = ((settings or {}).get("text_cfg") or {}).get("hf_tokenizer_name")
    return not repository or in_hub_cache(repository)


def _loaded(name: OpenClipName, where: "torch.device", precision: str) -> OpenClipEncoder:
    import open_clip

    quick = _quick_gelu(name)
    model, preprocess = _created(name, where, precision, quick)
    model = model.eval().requires_grad_(False)
    settings = dict(open_clip.get_model_config(name.architecture) or {})
    settings["quick_gelu"] = bool(quick or settings.get("quick_gelu"))
    return OpenClipEncoder(
        model,
        preprocess,
        _tokenizer(name),
        id=name.spelling,
        fingerprint=fingerprint(
            {
                "kind": "open_clip",
                "settings": settings,
                "preprocessing": model.visual.preprocess_cfg,
                "precision": precision,
                "weights": hash_tensors(model.state_dict()),
            }
        ),
        precision=precision,
        batch_size=64 if where.type == "cpu" else 256,
    )


def _created(
    name: OpenClipName, device: "torch.device", precision: str, quick_gelu: bool
) -> tuple[Any, Any]:
    import open_clip

    options: dict[str, Any] = {}
    if name.file is not None:
        preprocessing = _file_preprocessing(name, name.file)
        options = {f"image_{key}": value for key, value in preprocessing.items()}
    try:
        return open_clip.create_model_from_pretrained(  # type: ignore[no-any-return]
            name.architecture,
            pretrained=str(name.file) if name.file else name.tag or None,
            precision=precision,
            device=device,
            force_quick_gelu=quick_gelu,
            weights_only=True,
            **options,
        )
    except Exception as error:  # open_clip raises whatever its downloader or torch raises
        advice = (
            f"Is {name.file} a checkpoint of {name.architecture} "
            "(.safetensors, or .pt with nothing but tensors)?"
            if name.file is not None
            else "If the weights cannot be downloaded here, get the file elsewhere and type "
            "ARCHITECTURE@FILE, or use conse:lite0, which needs no download"
        )
        raise EncoderError(f"Cannot load {name.spelling}: {first_line(error)}. {advice}") from error


def _tokenizer(name: OpenClipName) -> Any:
    import open_clip

    try:
        return open_clip.get_tokenizer(name.architecture)
    except ImportError as error:
        raise MissingExtraError(
            f"The tokenizer of {name.spelling} needs {error.name}, which is not installed. "
            f"Type: {install_command('clip')}"
        ) from error
    except Exception as error:  # what the hub's client raises has no common base
        raise EncoderError(
            f"Cannot load the tokenizer of {name.spelling}: {first_line(error)}"
        ) from error


def _quick_gelu(name: OpenClipName) -> bool:
    """Return whether to force QuickGELU."""
    import open_clip

    if name.architecture.startswith("hf-hub:"):
        return False  # the configuration in the repository has it
    if name.file is None:
        published = open_clip.get_pretrained_cfg(name.architecture, name.tag)
        return bool(published.get("quick_gelu"))
    if config := _config_of(name.file).get("model_cfg"):
        return bool(config.get("quick_gelu"))
    settings = open_clip.get_model_config(name.architecture) or {}
    kin = [settings] if "quick_gelu" in settings else _published(name.architecture)
    kinds = {bool(published.get("quick_gelu")) for published in kin}
    if len(kinds) > 1:
        warnings.warn(
            f"it is unknown whether {name.file} was trained with QuickGELU: weights of "
            f"{name.architecture} exist both with and without it. Running without; if it was (as "
            f"OpenAI's, DFN's and MetaCLIP's were), type {name.architecture}-quickgelu@{name.file}",
            UnknownActivationWarning,
            stacklevel=4,
        )
        return False
    return kinds == {True}


def _published(architecture: str) -> list[dict[str, Any]]:
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(architecture)
    return [open_clip.get_pretrained_cfg(architecture, tag) for tag in tags]


def _file_preprocessing(name: OpenClipName, file: Path) -> dict[str, Any]:
    """Return the preprocessing from the configuration, or common to the published weights."""
    if config := _config_of(file).get("preprocess_cfg"):
        return {key: config[key] for key in _PREPROCESSING if key in config}
    shared: dict[str, Any] = {}
    kin = _published(name.architecture)
    for key in _PREPROCESSING:
        values = {json.dumps(published.get(key)) for published in kin}
        if len(values) == 1 and kin[0].get(key) is not None:
            shared[key] = kin[0][key]
    return shared


def _config_of(file: Path) -> dict[str, Any]:
    """Read the configuration that model hubs keep in the folder of the weights."""
    return read_config(file.parent / "open_clip_config.json")

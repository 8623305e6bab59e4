"""From a model's name to an open_clip model with the right activation and preprocessing."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptboost.encoders.openclip.openclip import OpenClipEncoder
from promptboost.encoders.openclip.weights import from_cache_alone, is_here, status_of_hub
from promptboost.encoders.runtime import fingerprint, hash_tensors, pick_device, require_modules
from promptboost.errors import EncoderError, MissingExtraError
from promptboost.io import parse_json

if TYPE_CHECKING:
    import torch

_PREPROCESSING = ("mean", "std", "interpolation", "resize_mode")


class UnknownActivationWarning(UserWarning):
    """A checkpoint does not say whether it needs QuickGELU, and its kind exists both ways."""


@dataclass(frozen=True)
class OpenClipName:
    """Where a model's architecture and weights come from."""

    spelling: str  # what the user typed
    architecture: str  # or hf-hub:org/name
    tag: str = ""  # of published weights
    file: Path | None = None  # a checkpoint on disk


def require_open_clip() -> None:
    """Raise an error with the command to type unless open_clip is installed."""
    require_modules(["torch", "open_clip"], "clip", "open_clip models")


def load_openclip(
    name: OpenClipName, *, device: str | None = None, batch_size: int = 64
) -> OpenClipEncoder:
    """Load an open_clip model as an encoder."""
    require_open_clip()
    where = pick_device(device)
    if is_here(name.spelling):
        try:
            with from_cache_alone():
                return _loaded(name, where, batch_size)
        except EncoderError:
            # Perhaps only a part of it is here: the hub has the rest, if it answers.
            if status_of_hub() is None:
                raise
    return _loaded(name, where, batch_size)


def _loaded(name: OpenClipName, where: "torch.device", batch_size: int) -> OpenClipEncoder:
    import open_clip

    precision = "fp16" if where.type == "cuda" else "fp32"
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
        half_precision=precision == "fp16",
        batch_size=batch_size,
    )


def _created(
    name: OpenClipName, device: "torch.device", precision: str, quick_gelu: bool
) -> tuple[Any, Any]:
    import open_clip

    options: dict[str, Any] = {}
    if name.file is not None:
        known = _file_preprocessing(name, name.file)
        options = {f"image_{key}": value for key, value in known.items()}
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
        raise EncoderError(
            f"Cannot load {name.spelling}: {_first_line(error)}. {advice}"
        ) from error


def _tokenizer(name: OpenClipName) -> Any:
    import open_clip

    try:
        return open_clip.get_tokenizer(name.architecture)
    except ImportError as error:
        raise MissingExtraError(
            f"The tokenizer of {name.spelling} needs {error.name}, which is not installed. "
            "Type: pip install 'promptboost[clip]'"
        ) from error
    except Exception as error:  # what the hub's client raises has no common base
        raise EncoderError(
            f"Cannot load the tokenizer of {name.spelling}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def _quick_gelu(name: OpenClipName) -> bool:
    """Whether QuickGELU must be forced upon the architecture."""
    import open_clip

    if name.architecture.startswith("hf-hub:"):
        return False  # the configuration beside the weights has it
    if name.file is None:
        published = open_clip.get_pretrained_cfg(name.architecture, name.tag)
        return bool(published.get("quick_gelu"))
    if beside := _beside(name.file).get("model_cfg"):
        return bool(beside.get("quick_gelu"))
    settings = open_clip.get_model_config(name.architecture) or {}
    kin = [settings] if "quick_gelu" in settings else _published(name.architecture)
    kinds = {bool(published.get("quick_gelu")) for published in kin}
    if len(kinds) > 1:
        warnings.warn(
            f"{name.file} does not say whether it was trained with QuickGELU, and weights of "
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
    """Preprocessing of a checkpoint: said beside it, or what all its published kin share."""
    if beside := _beside(file).get("preprocess_cfg"):
        return {key: beside[key] for key in _PREPROCESSING if key in beside}
    shared: dict[str, Any] = {}
    kin = _published(name.architecture)
    for key in _PREPROCESSING:
        values = {json.dumps(published.get(key)) for published in kin}
        if len(values) == 1 and kin[0].get(key) is not None:
            shared[key] = kin[0][key]
    return shared


def _beside(file: Path) -> dict[str, Any]:
    """Read the configuration that model hubs keep in the folder of the weights."""
    path = file.parent / "open_clip_config.json"
    if not path.is_file():
        return {}
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EncoderError(f"{path} is not JSON: {error}") from error
    return config if isinstance(config, dict) else {}

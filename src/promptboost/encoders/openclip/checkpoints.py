"""From a model's name to an open_clip model with the right activation and preprocessing."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptboost.encoders.hub_files import from_cache_alone, status_of_hub
from promptboost.encoders.openclip.openclip import OpenClipEncoder
from promptboost.encoders.openclip.weights import is_here
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

_PREPROCESSING = ("mean", "std", "interpolation", "resize_mode")


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
    name: OpenClipName, *, device: str | None = None, precision: str | None = None
) -> OpenClipEncoder:
    """Load an open_clip model as an encoder, by default in half precision on CUDA."""
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

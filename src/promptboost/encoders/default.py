"""The default encoder."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from promptboost.config import CLIP_ENCODER, DEFAULT_ENCODER
from promptboost.encoders.hub_files import hub, in_hub_cache, status_of_hub
from promptboost.errors import install_command

#: Environment variable that overrides the choice.
VARIABLE = "PROMPTBOOST_ENCODER"
#: Where the weights of the default CLIP model are, known without loading open_clip.
CLIP_REPOSITORY = "timm/vit_base_patch32_clip_224.openai"
_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
#: The same model as ONNX towers, for machines without torch.
ONNX_REPOSITORY = "Xenova/clip-vit-base-patch32"
ONNX_ENCODER = f"onnx:{ONNX_REPOSITORY}"
_ONNX_FILES = ("onnx/text_model.onnx", "onnx/vision_model.onnx")
_ONNX_FACTS = "606 MB, MIT license, published zero-shot accuracy on ImageNet 63.2%"
_WHAT_CONSE_IS = "an ImageNet classifier and a sentence encoder, less accurate than CLIP"


@dataclass(frozen=True)
class EncoderChoice:
    """The name of an encoder, and why it was chosen."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"encoder {self.name}: {self.reason}"


def chosen_encoder(consent: Callable[[str], bool] = lambda question: False) -> EncoderChoice:
    """Choose a CLIP model if one is available, else the ConSE encoder, which needs no hub.

    The environment variable ``PROMPTBOOST_ENCODER`` takes precedence. The hub is contacted only if the
    weights are not in its cache, once per process. `consent` is called with a question before ONNX towers
    are chosen that would be downloaded.
    """
    if named := os.environ.get(VARIABLE, "").strip():
        return EncoderChoice(named, f"named by {VARIABLE}")
    choice = _available()
    if choice == _OFFER and consent(f"Download {ONNX_ENCODER} ({_ONNX_FACTS})?"):
        return EncoderChoice(ONNX_ENCODER, f"CLIP as ONNX, {_ONNX_FACTS}")
    return choice


@cache  # one choice per process, even if the hub comes and goes
def _available() -> EncoderChoice:
    if find_spec("open_clip") is None or find_spec("torch") is None:
        return _without_torch()
    if in_hub_cache(CLIP_REPOSITORY, _CLIP_WEIGHTS):
        return EncoderChoice(CLIP_ENCODER, "its weights are on this machine")
    if (status_of_hub(f"{CLIP_REPOSITORY}/resolve/main/{_CLIP_WEIGHTS[0]}") or 599) < 400:
        return EncoderChoice(CLIP_ENCODER, f"its weights, 605 MB, come from {hub()} the first time")
    return _conse(CLIP_ENCODER, f"if {hub()} can be reached")


def _without_torch() -> EncoderChoice:
    if find_spec("onnxruntime") is None or find_spec("tokenizers") is None:
        return _conse(CLIP_ENCODER, f"with open_clip, {install_command('clip')}")
    if all(in_hub_cache(ONNX_REPOSITORY, (file,)) for file in _ONNX_FILES):
        return EncoderChoice(ONNX_ENCODER, "its files are on this machine")
    if (status_of_hub(f"{ONNX_REPOSITORY}/resolve/main/{_ONNX_FILES[-1]}") or 599) < 400:
        return _OFFER
    return _conse(ONNX_ENCODER, f"with --allow-download, if {hub()} can be reached")


def _conse(better: str, where: str) -> EncoderChoice:
    return EncoderChoice(DEFAULT_ENCODER, f"{_WHAT_CONSE_IS}; {better} is used {where}")


_OFFER = _conse(ONNX_ENCODER, f"with --allow-download ({_ONNX_FACTS})")

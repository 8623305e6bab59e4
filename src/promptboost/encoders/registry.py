"""From the name a user types to an encoder."""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from promptboost.encoders.base import Encoder
from promptboost.encoders.models import MODELS
from promptboost.errors import EncoderError, SettingError

__all__ = ["load_encoder"]


def load_encoder(name: str, *, device: str | None = None, **parameters: Any) -> Encoder:
    """Load the encoder that a name stands for.

    Parameters
    ----------
    name : str
        One of

        * ``ViT-B-32/openai``: an architecture and published weights that open_clip knows;
        * ``hf-hub:org/name``: an open_clip model on the Hugging Face hub;
        * ``ViT-B-32@path/to/weights.safetensors``: an architecture and a checkpoint on disk. Where
          weights of the architecture exist with and without QuickGELU, type
          ``ViT-B-32-quickgelu@...`` for those with;
        * ``conse:lite0``, ``conse:lite2``: made of parts from package registries, no hub needed.
          Settings may follow: ``conse:lite0?temperature=2``;
        * ``fake:32-0``: for tests, with the dimension and the seed.
    device : str, optional
        Where to run, as torch spells it. By default CUDA, then MPS, then the processor.
    **parameters
        ``temperature`` and ``template`` of ConSE encoders, ``batch_size`` of open_clip models.

    Returns
    -------
    Encoder
        Its ``id`` is a name that loads it again.

    Raises
    ------
    EncoderError
        If the name is unknown or the model cannot be loaded.
    MissingExtraError
        If a package is missing; the message has the command that installs it.

    Examples
    --------
    >>> load_encoder("fake:32-0").dim
    32
    >>> load_encoder("conse:lite1")
    Traceback (most recent call last):
    promptboost.errors.EncoderError: There is no encoder 'conse:lite1'. Did you mean conse:lite2, \
conse:lite0 or conse:lite2-l6? To see what there is, type: promptboost models
    """
    kind, _, rest = name.partition(":")
    loaders: dict[str, Callable[..., Encoder]] = {
        "conse": _load_conse,
        "fake": _load_fake,
        "hf-hub": _load_hub,
    }
    if kind in loaders and rest:
        return loaders[kind](name, rest, device, parameters)
    if "@" in name:
        return _load_file(name, device, parameters)
    if "/" in name:
        return _load_published(name, device, parameters)
    raise _unknown(name)


def _load_conse(name: str, rest: str, device: str | None, parameters: Mapping[str, Any]) -> Encoder:
    variant, _, query = rest.partition("?")
    if f"conse:{variant}" not in {record.name for record in MODELS}:
        raise _unknown(f"conse:{variant}")
    settings = {**dict(parse_qsl(query, keep_blank_values=True)), **parameters}
    _check_parameters(name, settings, ("temperature", "template"))
    from promptboost.encoders.conse import load_conse

    return load_conse(variant, device=device, **settings)


def _load_fake(name: str, rest: str, device: str | None, parameters: Mapping[str, Any]) -> Encoder:
    from promptboost.encoders.fake import FakeEncoder

    _check_parameters(name, parameters, ())
    numbers = re.fullmatch(r"([1-9]\d*)-(\d+)", rest)
    if numbers is None:
        raise EncoderError(
            f"{name!r} is not a fake encoder: type the dimension and the seed, as in fake:32-0"
        )
    return FakeEncoder(dim=int(numbers[1]), seed=int(numbers[2]))


def _load_hub(name: str, rest: str, device: str | None, parameters: Mapping[str, Any]) -> Encoder:
    from promptboost.encoders.openclip_load import OpenClipName, load_openclip

    _check_parameters(name, parameters, ("batch_size",))
    if rest.count("/") != 1:
        raise EncoderError(f"{name!r} should be hf-hub:organisation/model")
    return load_openclip(OpenClipName(name, name), device=device, **parameters)


def _load_file(name: str, device: str | None, parameters: Mapping[str, Any]) -> Encoder:
    from promptboost.encoders.openclip_load import OpenClipName, load_openclip, require_open_clip

    architecture, _, path = name.partition("@")
    _check_parameters(name, parameters, ("batch_size",))
    require_open_clip()
    from open_clip import list_models

    if architecture not in list_models():
        raise _unknown(architecture, list_models(), "architecture")
    file = Path(path).expanduser()
    if not file.is_file():
        raise EncoderError(f"There is no checkpoint {file}, which {name!r} asks for")
    return load_openclip(OpenClipName(name, architecture, file=file), device=device, **parameters)


def _load_published(name: str, device: str | None, parameters: Mapping[str, Any]) -> Encoder:
    from promptboost.encoders.openclip_load import OpenClipName, load_openclip, require_open_clip

    architecture, _, tag = name.rpartition("/")
    _check_parameters(name, parameters, ("batch_size",))
    require_open_clip()
    from open_clip import list_pretrained

    if (architecture, tag) not in list_pretrained():
        raise _unknown(name, ["/".join(pair) for pair in list_pretrained()])
    return load_openclip(OpenClipName(name, architecture, tag), device=device, **parameters)


def _check_parameters(name: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    if strange := sorted(set(given) - set(known)):
        has = f"has the parameters {', '.join(known)}" if known else "has no parameters"
        raise SettingError(f"{name} {has}, not {', '.join(strange)}")


def _unknown(name: str, known: Iterable[str] = (), what: str = "encoder") -> EncoderError:
    names = [*known] if what != "encoder" else [*known, *(record.name for record in MODELS)]
    # Architectures are often typed without weights: those of the same beginning come first.
    starts = [other for other in names if other.startswith(f"{name}/")]
    lower = {other.lower(): other for other in names}
    close = [lower[other] for other in get_close_matches(name.lower(), lower, n=3, cutoff=0.6)]
    offers = list(dict.fromkeys([*starts, *close]))[:3]
    hint = f" Did you mean {_either(offers)}?" if offers else ""
    return EncoderError(
        f"There is no {what} {name!r}.{hint} To see what there is, type: promptboost models"
    )


def _either(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

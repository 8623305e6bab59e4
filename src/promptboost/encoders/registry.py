"""From the name a user types to an encoder."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from promptboost.config import AUTO
from promptboost.encoders.base import ENCODER_PARTS, Encoder
from promptboost.errors import EncoderError, PromptBoostError, SettingError
from promptboost.plugins import import_object, load_plugins

#: The entry point group in which other packages declare encoders: prefix = loader.
ENTRY_POINTS = "promptboost.encoders"
Loader = Callable[..., Encoder]
_registered: dict[str, Loader] = {}
# Encoders that need no hub and no code of others.
_MADE_HERE = ("conse", "fake")


@dataclass(frozen=True)
class ModelRecord:
    """What to know about a model before loading it.

    Attributes
    ----------
    name, title : str
        What to type, and what papers call it.
    resolution : int
        Side in pixels of the images it looks at.
    parameters : int
        Number of weights, in millions.
    quick_gelu : bool
        Trained with QuickGELU; the loader sees to it that the model also runs with it.
    """

    family: str
    name: str
    title: str
    dim: int
    resolution: int
    context_length: int
    parameters: int
    quick_gelu: bool = False
    note: str = ""

    @property
    def size(self) -> int:
        """Megabytes of memory in single precision; half of it on CUDA."""
        return 4 * self.parameters


_BOTH_WAYS = "text tower attends to padding"
_WORLD = "multilingual"
_NO_HUB = "needs no model hub; not trained on pairs of images and texts"
_SWAPPED = "the image net of {}, the sentence encoder of {}; needs no model hub"
_SWAPPED_2_0, _SWAPPED_0_2 = _SWAPPED.format("lite2", "lite0"), _SWAPPED.format("lite0", "lite2")
# Name, title, dim, resolution, context length, millions of weights, QuickGELU, note.
# fmt: off
_FAMILIES: dict[str, list[tuple[str, str, int, int, int, int, bool, str]]] = {
    "OpenAI CLIP": [
        ("RN50/openai", "RN50", 1024, 224, 77, 102, True, ""),
        ("ViT-B-32/openai", "ViT-B/32", 512, 224, 77, 151, True, ""),
        ("ViT-L-14/openai", "ViT-L/14", 768, 224, 77, 428, True, ""),
    ],
    "OpenCLIP": [
        ("ViT-B-16/laion2b_s34b_b88k", "ViT-B/16", 512, 224, 77, 150, False, ""),
        ("ViT-L-14/laion2b_s32b_b82k", "ViT-L/14", 768, 224, 77, 428, False, ""),
        ("ViT-H-14/laion2b_s32b_b79k", "ViT-H/14", 1024, 224, 77, 986, False, ""),
        ("ViT-g-14/laion2b_s34b_b88k", "ViT-g/14", 1024, 224, 77, 1367, False, ""),
    ],
    "DFN": [
        ("ViT-B-16/dfn2b", "ViT-B/16", 512, 224, 77, 150, True, ""),
        ("ViT-L-14/dfn2b", "ViT-L/14", 768, 224, 77, 428, True, ""),
        ("ViT-H-14/dfn5b", "ViT-H/14", 1024, 224, 77, 986, True, ""),
    ],
    "CLIPA-v2": [
        ("ViT-L-14-CLIPA/datacomp1b", "ViT-L/14", 768, 224, 32, 414, False, _BOTH_WAYS),
        ("ViT-H-14-CLIPA/datacomp1b", "ViT-H/14", 1024, 224, 32, 968, False, _BOTH_WAYS),
    ],
    "SigLIP2": [
        ("ViT-B-16-SigLIP2/webli", "ViT-B/16", 768, 224, 64, 375, False, _BOTH_WAYS),
        ("ViT-L-16-SigLIP2-256/webli", "ViT-L/16", 1024, 256, 64, 882, False, _BOTH_WAYS),
        ("ViT-gopt-16-SigLIP2-256/webli", "ViT-g-opt/16", 1536, 256, 64, 1871, False, _BOTH_WAYS),
    ],
    "MetaCLIP2": [
        ("ViT-H-14-worldwide/metaclip2_worldwide", "ViT-H/14", 1024, 224, 77, 1859, True, _WORLD),
        ("ViT-bigG-14-worldwide/metaclip2_worldwide", "ViT-G/14", 1280, 224, 77, 3630, False, _WORLD),
    ],
    "EVA-02": [
        ("EVA02-B-16/merged2b_s8b_b131k", "ViT-B/16", 512, 224, 77, 150, False, ""),
        ("EVA02-L-14/merged2b_s4b_b131k", "ViT-L/14", 768, 224, 77, 428, False, ""),
        ("EVA02-E-14/laion2b_s4b_b115k", "ViT-E/14", 1024, 224, 77, 4705, False, ""),
    ],
    "ConSE": [
        ("conse:lite0", "EfficientNet-Lite0 + MiniLM-L6", 384, 224, 256, 27, False, _NO_HUB),
        ("conse:lite2", "EfficientNet-Lite2 + MiniLM-L3", 384, 260, 128, 23, False, _NO_HUB),
        ("conse:lite2-l6", "EfficientNet-Lite2 + MiniLM-L6", 384, 260, 256, 29, False, _SWAPPED_2_0),
        ("conse:lite0-l3", "EfficientNet-Lite0 + MiniLM-L3", 384, 224, 128, 21, False, _SWAPPED_0_2),
    ],
}
# fmt: on
MODELS = tuple(
    ModelRecord(family, *fields) for family, models in _FAMILIES.items() for fields in models
)


def models_by_family() -> dict[str, list[ModelRecord]]:
    """Group the models by family, in the order of the paper.

    Examples
    --------
    >>> [record.title for record in models_by_family()["OpenAI CLIP"]]
    ['RN50', 'ViT-B/32', 'ViT-L/14']
    """
    return {family: list(records) for family, records in groupby(MODELS, lambda r: r.family)}


def register_encoder(prefix: str, loader: Loader) -> None:
    """Make encoders loadable under names of the form ``prefix:rest``.

    An installed package does the same without being imported first, by the entry point
    ``prefix = "package.module:loader"`` in the group ``promptboost.encoders``.

    Parameters
    ----------
    prefix : str
        Letters, digits, ``-`` and ``_``.
    loader : callable
        Called as ``loader(rest, device=device)``, with further parameters of
        :func:`load_encoder` by name; returns an :class:`~promptboost.Encoder`. A class
        will do. :func:`promptboost.testing.check_encoder` tells what an encoder lacks.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> register_encoder("small", lambda rest, device=None: FakeEncoder(dim=int(rest)))
    >>> load_encoder("small:8").dim
    8
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", prefix) or prefix in _BUILT_IN:
        raise SettingError(
            f"the prefix {prefix!r} cannot be registered: take letters, digits, - and _, and none "
            f"of {', '.join(_BUILT_IN)}"
        )
    _registered[prefix] = loader


def is_registered(prefix: str) -> bool:
    """Tell whether an installed package, or this process, declares encoders of a prefix."""
    return prefix in _registered or prefix in load_plugins(ENTRY_POINTS)


def check_trusted(name: str, *, allow_download: bool = False) -> None:
    """Check that an encoder named by a file may be loaded without asking.

    It may if promptboost or an installed package makes it without a hub, if its weights are here, or
    if it was used on this machine before, so that the embedding store knows it.

    Parameters
    ----------
    name : str
        As the file has it.
    allow_download : bool, default=False
        Whether weights may come from a model hub. Code is never imported because a file names it.

    Raises
    ------
    EncoderError
        If it may not; the message says what would happen, and how to allow it.

    Examples
    --------
    >>> check_trusted("fake:32-0")
    >>> check_trusted("os:system?command=true")
    Traceback (most recent call last):
    promptboost.errors.EncoderError: the file names the encoder 'os:system?command=true', which is \
code that would be imported and run; if you know it and want that, name it yourself: --encoder \
'os:system?command=true' (in Python: encoder=...)
    """
    kind, _, rest = name.partition(":")
    if kind in _MADE_HERE or name in _known_here():
        return
    from promptboost.encoders.openclip.weights import is_here

    if kind != "hf-hub" and rest and re.fullmatch(r"[\w.-]+", kind):
        if is_registered(kind):
            return
        raise EncoderError(
            f"the file names the encoder {name!r}, which is code that would be imported and run; if "
            f"you know it and want that, name it yourself: --encoder {name!r} (in Python: encoder=...)"
        )
    if name == AUTO:
        raise EncoderError(
            f"the file names the encoder {AUTO!r}, which asks a model hub what there is and is no model; "
            "name one yourself: --encoder NAME (in Python: encoder=...)"
        )
    if allow_download or not ("/" in name or "@" in name) or is_here(name):
        return
    raise EncoderError(
        f"the file names the encoder {name!r}, which is not on this machine and would be got from a "
        "model hub; to allow that, add --allow-download (in Python: allow_download=True)"
    )


def _known_here() -> set[str]:
    """Return the names of the encoders that were used on this machine before."""
    from promptboost.encoders.store import EmbeddingStore

    try:
        return {share.name for share in EmbeddingStore().report().encoders if share.name}
    except (PromptBoostError, OSError):  # a store that cannot be read knows nothing
        return set()


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
        * ``auto``: ``ViT-B-32/openai`` if open_clip is installed and its weights are on this machine or
          at a hub that answers, else ``conse:lite0``;
        * ``fake:32-0``: for tests, with the dimension and the seed;
        * ``prefix:rest``: of another package, see :func:`register_encoder`;
        * ``package.module:Class``: a class that can be imported. Settings may follow:
          ``package.module:Class?size=3`` passes ``size="3"``.
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
    if name == AUTO:
        from promptboost.encoders.default import chosen_encoder

        name = chosen_encoder().name
    kind, _, rest = name.partition(":")
    if kind in _BUILT_IN and rest:
        return _BUILT_IN[kind](name, rest, device, parameters)
    if rest and re.fullmatch(r"[\w.-]+", kind):
        return _load_foreign(name, kind, rest, device, parameters)
    if "@" in name or "/" in name:
        return _load_openclip(name, rest, device, parameters)
    raise _unknown(name)


def _load_foreign(
    name: str, kind: str, rest: str, device: str | None, parameters: Mapping[str, Any]
) -> Encoder:
    """Load an encoder that another package brings."""
    loader: Any = _registered.get(kind) or load_plugins(ENTRY_POINTS).get(kind)
    if loader is not None:
        return _checked(name, loader(rest, device=device, **parameters))
    path, _, query = rest.partition("?")
    try:
        made_by = import_object(f"{kind}:{path}")
    except SettingError as error:
        raise EncoderError(f"{_unknown(name)}. As package.module:Class: {error}") from error
    # The name may be of a stranger's file: what is not a class of encoders, such as os:system, is not
    # called to see what it makes.
    methods = ENCODER_PARTS[len(Encoder.__annotations__) :]
    if not isinstance(made_by, type) or not all(hasattr(made_by, part) for part in methods):
        lacking = [part for part in ENCODER_PARTS if not hasattr(made_by, part)]
        raise EncoderError(f"{kind}:{path} is no class of encoders: it lacks {', '.join(lacking)}")
    settings = {**dict(parse_qsl(query, keep_blank_values=True)), **parameters}
    return _checked(name, made_by(**settings))


def _checked(name: str, encoder: Any) -> Encoder:
    if isinstance(encoder, Encoder):
        return encoder
    lacking = [part for part in ENCODER_PARTS if not hasattr(encoder, part)]
    raise EncoderError(
        f"{name} made {type(encoder).__name__}, which is no encoder: it lacks "
        f"{', '.join(lacking)}. promptboost.testing.check_encoder tells what is missing"
    )


def _load_conse(name: str, rest: str, device: str | None, parameters: Mapping[str, Any]) -> Encoder:
    variant, _, query = rest.partition("?")
    if f"conse:{variant}" not in {record.name for record in MODELS}:
        raise _unknown(f"conse:{variant}")
    settings = {**dict(parse_qsl(query, keep_blank_values=True)), **parameters}
    _check_parameters(name, settings, ("temperature", "template"))
    from promptboost.encoders.conse.conse import load_conse

    return load_conse(variant, device=device, **settings)


def _load_fake(name: str, rest: str, device: str | None, parameters: Mapping[str, Any]) -> Encoder:
    from promptboost.encoders.fake import FakeEncoder

    _check_parameters(name, parameters, ())
    numbers = re.fullmatch(r"([1-9]\d{0,5})-(\d{1,18})", rest, re.ASCII)
    if numbers is None:
        raise EncoderError(
            f"{name!r} is not a fake encoder: type the dimension and the seed, as in fake:32-0"
        )
    return FakeEncoder(dim=int(numbers[1]), seed=int(numbers[2]))


def _load_openclip(
    name: str, rest: str, device: str | None, parameters: Mapping[str, Any]
) -> Encoder:
    from promptboost.encoders.openclip import checkpoints
    from promptboost.encoders.openclip.weights import catalogue, check_reach

    _check_parameters(name, parameters, ("batch_size",))
    checkpoints.require_open_clip()
    in_hub = name.startswith("hf-hub:")
    if in_hub and rest.count("/") != 1:
        raise EncoderError(f"{name!r} should be hf-hub:organization/model")
    if not in_hub and "@" not in name:
        published = catalogue().list_pretrained()
        if tuple(name.rsplit("/", 1)) not in published:
            raise _unknown(name, ["/".join(pair) for pair in published])
    check_reach(name)  # before open_clip is loaded, which takes seconds
    from open_clip import list_models

    source = checkpoints.OpenClipName(name, name)
    if "@" in name:
        architecture, _, path = name.partition("@")
        if architecture not in list_models():
            raise _unknown(architecture, list_models(), "architecture")
        file = Path(path).expanduser()
        if not file.is_file():
            raise EncoderError(f"There is no checkpoint {file}, which {name!r} asks for")
        source = checkpoints.OpenClipName(name, architecture, file=file)
    elif not in_hub:
        architecture, _, tag = name.rpartition("/")
        source = checkpoints.OpenClipName(name, architecture, tag)
    return checkpoints.load_openclip(source, device=device, **parameters)


_BUILT_IN: dict[str, Callable[[str, str, str | None, Mapping[str, Any]], Encoder]] = {
    "conse": _load_conse,
    "fake": _load_fake,
    "hf-hub": _load_openclip,
}


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
    either = " or ".join([", ".join(offers[:-1]), *offers[-1:]]).removeprefix(" or ")
    hint = f" Did you mean {either}?" if offers else ""
    return EncoderError(
        f"There is no {what} {name!r}.{hint} To see what there is, type: promptboost models"
    )

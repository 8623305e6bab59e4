"""Encoders by name."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module, resources
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl

import msgspec

from promptboost.config import AUTO
from promptboost.encoders.base import ENCODER_PARTS, Encoder, lacking_parts
from promptboost.encoders.runtime import require_modules
from promptboost.errors import EncoderError, PromptBoostError, SettingError
from promptboost.plugins import import_object, load_plugins

#: The entry point group in which other packages declare encoders: prefix = loader.
ENTRY_POINTS = "promptboost.encoders"
Loader = Callable[..., Encoder]
_registered: dict[str, Loader] = {}
Precision = Literal["fp16", "bf16", "fp32"]
PRECISIONS = get_args(Precision)
# Ends the name of an encoder in another than its usual precision, which changes its embeddings.
_IN_PRECISION = "?precision="
_defaults: dict[str, Any] = {}
# The prefixes of promptboost: a loader, the modules it needs, and their extra. Names of open_clip models
# without a prefix are loaded as those of a hub.
_BUILT_IN: dict[str, tuple[str, tuple[str, ...], str]] = {
    "conse": ("conse.conse:ConseEncoder", (), "offline"),
    "fake": ("fake:load_fake", (), "offline"),
    "hf-hub": ("openclip.openclip:load_openclip", ("torch", "open_clip"), "clip"),
    "onnx": ("onnx_towers:OnnxEncoder", ("onnxruntime", "tokenizers"), "onnx"),
    "hf": ("huggingface:TransformersEncoder", ("torch", "transformers"), "hf"),
    "st": ("huggingface:SentenceTransformerEncoder", ("sentence_transformers",), "st"),
}
_WITH_PRECISION = ("hf-hub", "hf")
# Models of other libraries, in a folder or on a hub.
_TOWERS = ("onnx", "hf", "st")


@dataclass(frozen=True)
class ModelRecord:
    """Facts about a model: a row of ``models.csv``."""

    family: str
    name: str  # to type
    title: str  # in papers
    dim: int
    resolution: int  # side of an image in pixels
    context_length: int
    parameters: int  # in millions
    quick_gelu: bool  # trained with QuickGELU, and run with it
    image_gflop: float | None = None  # operations to embed an image, as open_clip publishes them
    text_gflop: float | None = None
    note: str = ""

    @property
    def size(self) -> int:
        """Megabytes of memory in single precision; half of it on CUDA."""
        return 4 * self.parameters


def _read_models() -> tuple[ModelRecord, ...]:
    text = (resources.files(__package__) / "models.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    known = [{name: value for name, value in row.items() if value} for row in rows]
    return tuple(msgspec.convert(known, list[ModelRecord], strict=False))


#: The models of the paper and the ConSE encoders, in the order of the paper.
MODELS = _read_models()


def register_encoder(prefix: str, loader: Loader) -> None:
    """Make encoders loadable under names of the form ``prefix:argument``.

    An installed package does the same without being imported first, by the entry point
    ``prefix = "package.module:loader"`` in the group ``promptboost.encoders``.

    Parameters
    ----------
    prefix : str
        Letters, digits, ``-`` and ``_``.
    loader : callable
        Called as ``loader(argument, device=device)``, with further parameters of
        :func:`load_encoder` by name; returns an :class:`~promptboost.Encoder`. A class
        will do. :func:`promptboost.testing.check_encoder` checks an encoder.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> register_encoder("small", lambda argument, device=None: FakeEncoder(dim=int(argument)))
    >>> load_encoder("small:8").dim
    8
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", prefix) or prefix in _BUILT_IN:
        raise SettingError(
            f"the prefix {prefix!r} cannot be registered: take letters, digits, - and _, and none "
            f"of {', '.join(_BUILT_IN)}"
        )
    _registered[prefix] = loader


def check_trusted(name: str, *, allow_download: bool = False) -> None:
    """Check that an encoder named by a file may be loaded without the user's consent.

    That holds if promptboost or an installed package creates it without a hub, if its weights are on
    this machine, or if the embedding store contains embeddings of it. With `allow_download`, weights may
    come from a hub. Code is never imported because a file names it.
    """
    name = name.partition(_IN_PRECISION)[0]
    kind, _, path = name.partition(":")
    if kind in ("conse", "fake") or name in _used_before():
        return
    from promptboost.encoders.hub_files import is_model_here
    from promptboost.encoders.openclip.openclip import is_here

    if kind not in ("hf-hub", *_TOWERS) and path and re.fullmatch(r"[\w.-]+", kind):
        if kind in _registered or kind in load_plugins(ENTRY_POINTS):
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
    if allow_download or not ("/" in name or "@" in name):
        return
    if is_model_here(path) if kind in _TOWERS else is_here(name):
        return
    raise EncoderError(
        f"the file names the encoder {name!r}, which is not on this machine and would be got from a "
        "model hub; to allow that, add --allow-download (in Python: allow_download=True)"
    )


def _used_before() -> set[str]:
    """Return the names of the encoders that were used on this machine before."""
    from promptboost.encoders.store import EmbeddingStore

    try:
        names = (share.name or "" for share in EmbeddingStore().report().encoders)
        return {name.partition(_IN_PRECISION)[0] for name in names}
    except (PromptBoostError, OSError):  # the store cannot be read
        return set()


@contextmanager
def encoder_defaults(
    *, batch_size: int | str | None = None, precision: Precision | None = None
) -> Iterator[None]:
    """Load encoders with these parameters of :func:`load_encoder` where none are given.

    Examples
    --------
    >>> with encoder_defaults(batch_size=16):
    ...     load_encoder("fake:32-0").batch_size
    16
    """
    outer = dict(_defaults)
    _defaults.update(batch_size=batch_size, precision=precision)
    try:
        yield
    finally:
        _defaults.clear()
        _defaults.update(outer)


def load_encoder(
    name: str,
    *,
    device: str | None = None,
    batch_size: int | Literal["auto"] | None = None,
    precision: Precision | None = None,
    **parameters: Any,
) -> Encoder:
    """Load an encoder by its name.

    Parameters
    ----------
    name : str
        One of

        * ``ViT-B-32/openai``: an architecture and published weights of open_clip;
        * ``hf-hub:org/name``: an open_clip model on the Hugging Face hub;
        * ``ViT-B-32@path/to/weights.safetensors``: an architecture and a checkpoint on disk. Where
          weights of the architecture exist with and without QuickGELU, type
          ``ViT-B-32-quickgelu@...`` for those with;
        * ``onnx:org/name``, ``onnx:path/to/folder``: two towers as ONNX files, in the layout of
          Transformers.js, without torch;
        * ``hf:org/name``, ``hf:path/to/folder``: a model of transformers with image and text features;
        * ``st:org/name``, ``st:path/to/folder``: a model of sentence-transformers for images and texts;
        * ``conse:lite0``, ``conse:lite2``: made of parts from package registries, no hub needed;
        * ``auto``: ``ViT-B-32/openai`` if open_clip is installed and its weights are on this machine or
          at a hub that answers; without torch the same model as ONNX if it is on this machine; else
          ``conse:lite0``;
        * ``fake:32-0``: for tests, with the dimension and the seed;
        * ``prefix:argument``: of another package, see :func:`register_encoder`;
        * ``package.module:Class``: a class that can be imported. Settings may follow:
          ``package.module:Class?size=3`` passes ``size="3"``.
    device : str, optional
        Where to run, as torch spells it. By default CUDA, then MPS, then the processor.
    batch_size : int or "auto", optional
        Images of a batch. By default 64, and 256 on a GPU; halved while a batch does not fit into its
        memory.
    precision : {"fp16", "bf16", "fp32"}, optional
        Number type of the networks, by default fp16 on CUDA and else fp32. It changes the embeddings, so
        that it becomes a part of the encoder's name: ``ViT-B-32/openai?precision=bf16``, which can be
        given as well.
    **parameters
        Those of encoders of other packages.

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
    name, _, named = full_name(name).partition(_IN_PRECISION)
    precision = precision or named or None  # type: ignore[assignment]
    batch_size = _defaults.get("batch_size") if batch_size is None else batch_size
    if precision is not None and precision not in PRECISIONS:
        raise SettingError(f"precision is {precision!r}: give {', '.join(PRECISIONS)}")
    encoder = _loaded(name, device, precision, parameters)
    if precision is not None and getattr(encoder, "precision", None) == precision:
        encoder.id += f"{_IN_PRECISION}{precision}"
    if batch_size not in (None, "auto"):
        if isinstance(batch_size, str) or batch_size < 1:
            raise SettingError(f"batch_size is {batch_size!r}: give a number from 1 up, or auto")
        encoder.batch_size = batch_size  # type: ignore[attr-defined]
    return encoder


def full_name(name: str) -> str:
    """Return the name of an encoder with its precision, if :func:`encoder_defaults` sets one."""
    if name == AUTO:
        from promptboost.encoders.default import chosen_encoder

        name = chosen_encoder().name
    precision = _defaults.get("precision")
    if precision is None or _IN_PRECISION in name:
        return name
    return f"{name}{_IN_PRECISION}{precision}"


def _loaded(
    name: str, device: str | None, precision: str | None, parameters: Mapping[str, Any]
) -> Encoder:
    kind, _, argument = name.partition(":")
    chosen = {} if precision is None else {"precision": precision}
    if kind not in _BUILT_IN or not argument:
        if argument and re.fullmatch(r"[\w.-]+", kind):
            _check_parameters(name, chosen, ())
            return _load_foreign(name, kind, argument, device, parameters)
        if "@" not in name and "/" not in name:
            raise unknown_name(name)
        kind = "hf-hub"
    if kind == "conse" and name not in {record.name for record in MODELS}:
        raise unknown_name(name)
    loader, modules, extra = _BUILT_IN[kind]
    known = ("precision",) if kind in _WITH_PRECISION else ()
    _check_parameters(name, {**parameters, **chosen}, known)
    if modules:
        what = "open_clip models" if kind == "hf-hub" else f"{kind}: encoders"
        require_modules(modules, extra, what)
    module, _, attribute = loader.partition(":")
    encoder: Encoder = getattr(import_module(f"promptboost.encoders.{module}"), attribute)(
        name if kind == "hf-hub" else argument, device=device, **(chosen if known else {})
    )
    return encoder


def _load_foreign(
    name: str, kind: str, argument: str, device: str | None, parameters: Mapping[str, Any]
) -> Encoder:
    """Load an encoder of another package."""
    loader: Any = _registered.get(kind) or load_plugins(ENTRY_POINTS).get(kind)
    if loader is not None:
        return _checked(name, loader(argument, device=device, **parameters))
    path, _, query = argument.partition("?")
    try:
        made_by = import_object(f"{kind}:{path}")
    except SettingError as error:
        raise EncoderError(f"{unknown_name(name)}. As package.module:Class: {error}") from error
    # The name may come from an untrusted file: call nothing that is not an encoder class.
    methods = ENCODER_PARTS[len(Encoder.__annotations__) :]
    if not isinstance(made_by, type) or not all(hasattr(made_by, method) for method in methods):
        raise EncoderError(
            f"{kind}:{path} is no class of encoders: it lacks {lacking_parts(made_by)}"
        )
    settings = {**dict(parse_qsl(query, keep_blank_values=True)), **parameters}
    return _checked(name, made_by(**settings))


def _checked(name: str, encoder: Any) -> Encoder:
    if isinstance(encoder, Encoder):
        return encoder
    raise EncoderError(
        f"{name} made {type(encoder).__name__}, which is no encoder: it lacks "
        f"{lacking_parts(encoder)}. promptboost.testing.check_encoder checks encoders"
    )


def _check_parameters(name: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if given.get("precision") == "fp32":
        known = (*known, "precision")
    if strange := sorted(set(given) - set(known)):
        has = f"has the parameters {', '.join(known)}" if known else "has no parameters"
        raise SettingError(f"{name} {has}, not {', '.join(strange)}")


def unknown_name(name: str, known: Iterable[str] = (), what: str = "encoder") -> EncoderError:
    """Return the error about an unknown name, with the most similar known ones."""
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

"""Messages: requests as JSON, as a form or as one file; responses as JSON."""

import base64
import binascii
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from numpy.typing import NDArray
from starlette.datastructures import Headers, QueryParams, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response

from promptboost.encoders.base import unit_rows
from promptboost.model.prediction import Prediction
from promptboost.serve.limits import Limits, RequestError

Message = TypeVar("Message")

_LONGEST_NAME = 200
_FIELDS = 64  # of a form, besides its files
_FIELD_BYTES = 2**10
_NUMBER_BYTES = 64  # of a number of an embedding, with the space around it
_DATA_URL = re.compile(r"data:[\w.+/-]*;base64,")

#: The name of an image, and a function that returns the bytes of its file, for late base64 decoding.
NamedImage = tuple[str, Callable[[], bytes]]
Base64 = Annotated[str, Meta(description="The bytes of an image file in base64; a data: URL too.")]


class ImageMessage(Struct, forbid_unknown_fields=True):
    """An image with a name, which the prediction repeats."""

    data: Base64
    name: str | None = None


class PredictOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of a prediction request."""

    top_k: Annotated[int, Meta(ge=1, le=2**31, description="Classes to list for each image.")] = 1
    min_probability: Annotated[
        float, Meta(ge=0, le=1, description="Predictions below it are unsure, and name no class.")
    ] = 0.0
    explain: Annotated[bool, Meta(description="Add what each sentence contributes.")] = False


class PredictMessage(PredictOptions, kw_only=True):
    """A prediction request as JSON, with either images or embeddings."""

    images: Annotated[list[Base64 | ImageMessage], Meta(min_length=1)] | UnsetType = UNSET
    embeddings: (
        Annotated[
            list[list[float]],
            Meta(min_length=1, description="From the encoder of the run; scaled to length one."),
        ]
        | UnsetType
    ) = UNSET


class _RawMessage(Struct, forbid_unknown_fields=True):
    """Which fields a request has; their content is not decoded yet."""

    images: Raw = Raw()
    embeddings: Raw = Raw()
    top_k: Raw = Raw()
    min_probability: Raw = Raw()
    explain: Raw = Raw()


@dataclass(frozen=True)
class PredictRequest:
    """A checked request: images, or embeddings if there are any, and options."""

    images: list[NamedImage]
    embeddings: NDArray[np.float32] | None
    options: PredictOptions


class PredictAnswer(Struct):
    """Predictions in the order of the request, and the version of the run that made them."""

    run: str
    version: int
    predictions: list[Prediction]


class ErrorAnswer(Struct):
    """An error in plain words."""

    error: str


class VersionNote(Struct):
    """A version of a run: its number, the digest of its files, and when it was loaded."""

    version: int
    digest: str
    loaded: str


class RunAnswer(Struct):
    """A run."""

    name: str
    version: int
    digest: str
    loaded: str
    encoder: str
    classes: list[str]
    rounds: int
    sentences: int
    residual: bool
    dimensions: int
    problem: str | None
    versions: list[VersionNote]


class RunsAnswer(Struct):
    """All runs; the first one is the default."""

    runs: list[RunAnswer]


class Sentence(Struct):
    """A sentence and its weight in its class."""

    prompt: str
    weight: float


class SentencesAnswer(Struct):
    """The sentences of each class, heaviest first."""

    run: str
    version: int
    classes: dict[str, list[Sentence]]


class ReloadOutcome(Struct):
    """Outcome of reloading a run: loaded, unchanged or broken."""

    name: str
    outcome: str
    version: int


class ReloadAnswer(Struct):
    """Outcome of reloading each run; a broken one stays at its old version."""

    runs: list[ReloadOutcome]
    error: str | None = None


class StateAnswer(Struct):
    """The state of the server."""

    state: str


def json_schemas(messages: Iterable[type[Struct]]) -> dict[str, Any]:
    """Return JSON schemas by name; their descriptions are the first lines of docstrings."""
    _, schemas = msgspec.json.schema_components(
        messages, ref_template="#/components/schemas/{name}"
    )
    return {
        name: {**schema, "description": schema["description"].partition("\n")[0]}
        for name, schema in schemas.items()
    }


async def read_request(
    body: bytes, headers: Headers, query: QueryParams, limits: Limits, dim: int
) -> PredictRequest:
    """Read and check a prediction request; embeddings must have `dim` columns.

    Options are fields of the JSON or of the form, or of the address; those of the body win.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    embeddings = None
    fields: dict[str, Any] = {}
    if kind == "application/json":
        images, embeddings, fields = _read_json(body, limits, dim)
    elif kind == "multipart/form-data":
        images, fields = await _read_form(body, headers, limits)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        images = [("image", lambda: body)]
    else:
        raise RequestError(
            415,
            "content type",
            "send images as multipart/form-data, as application/json, or one as image/*",
        )
    if embeddings is None:
        _check_count(len(images), limits)
    try:
        options = msgspec.convert({**query, **fields}, PredictOptions, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(422, "request", _unusable(error)) from None
    return PredictRequest(images, embeddings, options)


def _unusable(error: msgspec.ValidationError) -> str:
    return f"the request cannot be used: {error}; /openapi.json describes what it may hold"


def _check_count(count: int, limits: Limits) -> None:
    if count < 1:
        raise RequestError(422, "request", "there is no image in the request")
    if count > limits.most_images:
        raise RequestError(
            422, "batch", f"{count} images in one request; send no more than {limits.most_images}"
        )


def _read_json(
    body: bytes, limits: Limits, dim: int
) -> tuple[list[NamedImage], NDArray[np.float32] | None, dict[str, Any]]:
    """Return images, embeddings and the options that were given explicitly."""
    raw = _decode(body, _RawMessage)
    if bool(raw.images) == bool(raw.embeddings):
        raise RequestError(422, "request", "send either images or embeddings")
    # Numbers take ten times the memory of their text: check before they are decoded.
    most = limits.most_images * dim * _NUMBER_BYTES
    if len(memoryview(raw.embeddings)) > most:
        raise RequestError(
            413, "bytes", f"the embeddings are too large; send at most {most:,} bytes"
        )
    message = _decode(body, PredictMessage)
    fields = {k: getattr(message, k) for k in PredictOptions.__struct_fields__ if getattr(raw, k)}
    if message.embeddings is not UNSET:
        return [], _matrix(message.embeddings, limits, dim), fields
    assert message.images is not UNSET
    _check_count(len(message.images), limits)
    images = [_json_image(*pair) for pair in enumerate(message.images, start=1)]
    return images, None, fields


def _matrix(rows: list[list[float]], limits: Limits, dim: int) -> NDArray[np.float32]:
    """Return embeddings as a matrix of rows of length one."""
    _check_count(len(rows), limits)
    if any(len(row) != dim for row in rows):
        raise RequestError(
            422, "request", f"embeddings have the shape [n, {dim}] with the encoder of this run"
        )
    matrix = np.array(rows, dtype=np.float64)
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(matrix, axis=1)
    if not (np.isfinite(lengths) & (lengths > 1e-12)).all():
        raise RequestError(422, "request", "embeddings must be finite, and longer than zero")
    return unit_rows(matrix)


def _decode(body: bytes, kind: type[Message]) -> Message:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(422, "request", _unusable(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestError(400, "request", "the body is not JSON") from None


def _base64_bytes(text: str) -> bytes:
    """Decode base64, or a data: URL of it."""
    if match := _DATA_URL.match(text):
        text = text[match.end() :]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(422, "base64", "not base64") from None


def _json_image(number: int, image: str | ImageMessage) -> NamedImage:
    data, name = (image, None) if isinstance(image, str) else (image.data, image.name)
    return _name(name, number), lambda: _base64_bytes(data)


class _Form(MultiPartParser):
    """Keeps files in memory, where the whole body is already."""

    spool_max_size = 2**62


async def _read_form(
    body: bytes, headers: Headers, limits: Limits
) -> tuple[list[NamedImage], dict[str, str]]:
    async def stream() -> AsyncIterator[bytes]:
        yield body

    most = limits.most_images
    form = _Form(
        headers,
        stream(),  # type: ignore[arg-type]
        max_files=most + 1,
        max_fields=_FIELDS,
        max_part_size=_FIELD_BYTES,
    )
    try:
        parts = (await form.parse()).multi_items()
    except MultiPartException as error:
        if "Too many files" in error.message:
            _check_count(most + 1, limits)
        raise RequestError(400, "request", f"the form cannot be read: {error.message}") from None
    except (KeyError, ValueError, LookupError, AttributeError):
        raise RequestError(400, "request", "the form cannot be read") from None
    images: list[NamedImage] = []
    fields: dict[str, str] = {}
    for name, value in parts:
        if isinstance(value, UploadFile):
            data = value.file.read()
            value.file.close()
            images.append((_name(value.filename, len(images) + 1), lambda data=data: data))  # type: ignore[misc]
        else:
            fields[name] = value
    return images, fields


def _name(given: str | None, number: int) -> str:
    """Return the name of an image in its prediction."""
    name = (given or "").encode("utf-8", "replace").decode()
    return name[:_LONGEST_NAME] or f"image {number}"


def json_content(message: type[Struct]) -> dict[str, Any]:
    """Return the OpenAPI description of JSON content of a type."""
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{message.__name__}"}}}


def json_response(
    answer: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    content = msgspec.json.encode(answer)
    return Response(content, status, headers, media_type="application/json")

"""Messages: requests as JSON, as a form or as one file; responses as JSON."""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from numpy.typing import NDArray
from starlette.datastructures import Headers, QueryParams, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response

from promptboost.model.prediction import Prediction
from promptboost.serve.limits import Limits, RequestError

Message = TypeVar("Message")

_LONGEST_NAME = 200
_FIELDS = 64  # of a form, besides its files
_FIELD_BYTES = 2**10
_PRIORS_BYTES = 2**18  # of class priors in JSON
_QUOTES = 64  # per image in JSON, and in options; more are not images
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
    accept: Annotated[
        float | None,
        Meta(description="Reject images unlike this share of the training images, such as 0.95."),
    ] = None
    coverage: Annotated[
        float | None,
        Meta(description="Add the smallest set of classes with this coverage, such as 0.9."),
    ] = None
    class_priors: Annotated[
        Literal["equal", "estimate"] | dict[str, Annotated[float, Meta(ge=0)]] | None,
        Meta(
            description="Adjust to the class frequencies of all images of the request: equal, estimated, "
            "or those of an object, where other classes do not occur."
        ),
    ] = None
    explain: Annotated[bool, Meta(description="Add what each sentence contributes.")] = False
    labels: Annotated[
        bool, Meta(description='Answer only `[{"label", "score"}, …]` for each image.')
    ] = False


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


#: The fields that a request has; their content is not decoded yet.
_RawMessage = msgspec.defstruct(
    "_RawMessage",
    [(name, Raw, Raw()) for name in PredictMessage.__struct_fields__],
    forbid_unknown_fields=True,
)


class PredictAnswer(Struct):
    """Predictions in the order of the request, and the version of the run that made them.

    There is a warning if the lengths of embeddings are far from one, or adjusted predictions or sets are
    unreliable. `changed` counts the predictions that class priors changed.
    """

    run: str
    version: int
    predictions: list[Prediction]
    warning: str | UnsetType = UNSET
    changed: int | UnsetType = UNSET


class ErrorAnswer(Struct):
    """An error in plain words."""

    error: str


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


class StateAnswer(Struct):
    """The state of the server."""

    state: str


async def read_request(
    body: bytes, headers: Headers, query: QueryParams, limits: Limits, dim: int
) -> tuple[list[NamedImage], NDArray[np.float64] | None, PredictOptions]:
    """Read a prediction request: images, or embeddings with `dim` columns, and options.

    Options are fields of the JSON or of the form, or of the address; those of the body win.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    embeddings = None
    fields: dict[str, Any] = {}
    if kind == "application/json":
        images, embeddings, fields = await asyncio.to_thread(_read_json, body, limits, dim)
    elif kind == "multipart/form-data":
        # In a loop of its own: a form of many small parts takes seconds.
        images, fields = await asyncio.to_thread(
            lambda: asyncio.run(_read_form(body, headers, limits))
        )
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
    given: dict[str, Any] = {**query, **fields}
    priors = given.get("class_priors")
    if isinstance(priors, str) and priors.startswith("{"):  # in a form or an address
        given["class_priors"] = _decode(priors.encode(), dict[str, float])
    try:
        options = msgspec.convert(given, PredictOptions, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(422, "request", _unusable(error)) from None
    return images, embeddings, options


def _unusable(error: msgspec.ValidationError) -> str:
    return f"the request cannot be used: {error}; see /openapi.json"


def _check_count(count: int, limits: Limits) -> None:
    if count < 1:
        raise RequestError(422, "request", "there is no image in the request")
    if count > limits.most_images:
        raise RequestError(
            422, "batch", f"{count} images in one request; send no more than {limits.most_images}"
        )


def _read_json(
    body: bytes, limits: Limits, dim: int
) -> tuple[list[NamedImage], NDArray[np.float64] | None, dict[str, Any]]:
    """Return images, embeddings and the options that were given explicitly."""
    raw: Any = _decode(body, _RawMessage)
    if bool(raw.images) == bool(raw.embeddings):
        raise RequestError(422, "request", "send either images or embeddings")
    # Objects take far more memory than their text: count them before they are decoded.
    priors = bytes(raw.class_priors)
    if len(priors) > _PRIORS_BYTES:
        raise RequestError(413, "bytes", "the class priors are too large")

    def count(mark: bytes) -> int:
        # In the body, as a copy of a field would be large too.
        return body.count(mark) - priors.count(mark)

    most, numbers = limits.most_images, 2 * limits.most_images * dim + _QUOTES
    if raw.embeddings and (count(b"[") > 2 * most or count(b",") > numbers):
        raise RequestError(
            413, "bytes", f"the embeddings are too large; send at most {most} of {dim} numbers"
        )
    if raw.images and count(b'"') > (most + 1) * _QUOTES:
        raise RequestError(422, "batch", f"too many images; send no more than {most}")
    message = _decode(body, PredictMessage)
    fields = {k: getattr(message, k) for k in PredictOptions.__struct_fields__ if getattr(raw, k)}
    if message.embeddings is not UNSET:
        _check_count(len(message.embeddings), limits)
        if any(len(row) != dim for row in message.embeddings):
            raise RequestError(
                422,
                "request",
                f"embeddings have the shape [n, {dim}] with the encoder of this run",
            )
        return [], np.array(message.embeddings, dtype=np.float64), fields
    assert message.images is not UNSET
    images: list[NamedImage] = []
    for number, image in enumerate(message.images, start=1):
        data, name = (image, None) if isinstance(image, str) else (image.data, image.name)
        images.append((_name(name, number), partial(_base64_bytes, data)))
    return images, None, fields


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

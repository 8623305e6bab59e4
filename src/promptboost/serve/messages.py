"""What is sent and answered: requests as JSON, as a form or as one file; answers as JSON."""

import base64
import binascii
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray
from starlette.datastructures import Headers, QueryParams, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response

from promptboost.serve.limits import Limits, RequestError

_LONGEST_NAME = 200
_FIELDS = 64  # of a form, beside its files
_FIELD_BYTES = 2**10
_DATA_URL = re.compile(r"data:[\w.+/-]*;base64,")

#: An image by its name, and a function that returns the bytes of its file: base64 is read late.
NamedImage = tuple[str, Callable[[], bytes]]
Base64 = Annotated[str, Meta(description="The bytes of an image file in base64; a data: URL too.")]


class ImageMessage(Struct, forbid_unknown_fields=True):
    """An image with a name, which the answer repeats."""

    data: Base64
    name: str | None = None


class PredictOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """What may be asked beside the images."""

    top_k: Annotated[int, Meta(ge=1, le=2**31, description="Classes to list for each image.")] = 1
    min_probability: Annotated[
        float, Meta(ge=0, le=1, description="Below it the answer is unsure, and names no class.")
    ] = 0.0
    explain: Annotated[bool, Meta(description="Add which sentences led to each answer.")] = False


class PredictMessage(PredictOptions, kw_only=True):
    """A request for answers, as JSON."""

    images: Annotated[list[Base64 | ImageMessage], Meta(min_length=1)]


class ClassProbability(Struct):
    """A class and its probability."""

    class_: str = msgspec.field(name="class")
    probability: float


class ImageAnswer(Struct):
    """The answer for one image; `predicted` is null where it is unsure, or where there is an error."""

    image: str
    predicted: str | None = None
    probability: float | None = None
    unsure: bool = False
    top: list[ClassProbability] = []
    error: str | None = None
    explanation: dict[str, Any] | None = None


class PredictAnswer(Struct):
    """Answers in the order of the images, and the version of the run that they come from."""

    run: str
    version: int
    predictions: list[ImageAnswer]


class ErrorAnswer(Struct):
    """What is wrong, in plain words."""

    error: str


class VersionNote(Struct):
    """A version of a run: its number, the digest of its files, and when it was loaded."""

    version: int
    digest: str
    loaded: str


class RunAnswer(Struct):
    """What is told about a run."""

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
    """All runs; the first one answers where none is named."""

    runs: list[RunAnswer]


class Sentence(Struct):
    """A sentence and its share in its class."""

    prompt: str
    weight: float


class SentencesAnswer(Struct):
    """The sentences of each class, heaviest first."""

    run: str
    version: int
    classes: dict[str, list[Sentence]]


class ReloadOutcome(Struct):
    """What became of a run that was loaded again: loaded, unchanged or broken."""

    name: str
    outcome: str
    version: int


class ReloadAnswer(Struct):
    """What became of each run; of a broken one the old version goes on."""

    runs: list[ReloadOutcome]
    error: str | None = None


class StateAnswer(Struct):
    """How the server is."""

    state: str


#: What the description of the server says about types.
DESCRIBED = (
    *(
        PredictOptions,
        PredictMessage,
        PredictAnswer,
        ErrorAnswer,
        RunsAnswer,
        RunAnswer,
        SentencesAnswer,
    ),
    *(ReloadAnswer, StateAnswer),
)


async def read_request(
    body: bytes, headers: Headers, query: QueryParams, limits: Limits
) -> tuple[list[NamedImage], PredictOptions]:
    """Return the images and options of a request.

    Options are fields of the JSON or of the form, or of the address; those of the body win.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        message = decoded_json(body, PredictMessage)
        check_number(len(message.images), limits)
        images = [_json_image(*pair) for pair in enumerate(message.images, start=1)]
        written = msgspec.json.decode(body, type=dict[str, msgspec.Raw])  # a default may be written
        options = PredictOptions.__struct_fields__
        fields: dict[str, Any] = {k: getattr(message, k) for k in options if k in written}
    elif kind == "multipart/form-data":
        images, fields = await _read_form(body, headers, limits)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        images, fields = [("image", lambda: body)], {}
    else:
        raise RequestError(
            415,
            "content type",
            "send images as multipart/form-data, as application/json, or one as image/*",
        )
    check_number(len(images), limits)
    try:
        return images, msgspec.convert({**query, **fields}, PredictOptions, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(422, "request", _unusable(error)) from None


def _unusable(error: msgspec.ValidationError) -> str:
    return f"the request cannot be used: {error}; /openapi.json describes what it may hold"


def check_number(number: int, limits: Limits) -> None:
    """Raise unless so many images may come in one request."""
    if number < 1:
        raise RequestError(422, "request", "there is no image in the request")
    if number > limits.most_images:
        raise RequestError(
            422, "batch", f"{number} images in one request; send no more than {limits.most_images}"
        )


def decoded_json(body: bytes, kind: Any) -> Any:
    """Read JSON of a known type."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(422, "request", _unusable(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestError(400, "request", "the body is not JSON") from None


def base64_bytes(text: str) -> bytes:
    """Return the bytes that base64 stands for."""
    if match := _DATA_URL.match(text):
        text = text[match.end() :]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(422, "base64", "not base64") from None


def _json_image(number: int, image: str | ImageMessage) -> NamedImage:
    data, name = (image, None) if isinstance(image, str) else (image.data, image.name)
    return _name(name, number), lambda: base64_bytes(data)


class _Form(MultiPartParser):
    """Keeps files in memory: the whole body is there already."""

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
            check_number(most + 1, limits)
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
    """Return what an image is called in the answer."""
    name = (given or "").encode("utf-8", "replace").decode()
    return name[:_LONGEST_NAME] or f"image {number}"


def image_answer(
    name: str,
    class_names: tuple[str, ...],
    probabilities: NDArray[np.float64],
    options: PredictOptions,
) -> ImageAnswer:
    """Return the answer for one image."""
    order = np.argsort(-probabilities, kind="stable")[: options.top_k].tolist()
    best = float(probabilities[order[0]])
    unsure = best < options.min_probability
    return ImageAnswer(
        image=name,
        predicted=None if unsure else class_names[order[0]],
        probability=best,
        unsure=unsure,
        top=[ClassProbability(class_names[k], float(probabilities[k])) for k in order],
    )


def schemas(kinds: Sequence[type]) -> dict[str, Any]:
    """Return JSON schemas of what is sent and answered, by name."""
    reference = "#/components/schemas/{name}"
    _, described = msgspec.json.schema_components(kinds, ref_template=reference)
    return dict(described)


def json_content(name: str) -> dict[str, Any]:
    """Return how OpenAPI says that a type is sent as JSON."""
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def json_response(
    answer: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer as JSON."""
    content = msgspec.json.encode(answer)
    return Response(content, status, headers, media_type="application/json")

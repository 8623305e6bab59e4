"""The Open Inference Protocol, version 2: health, metadata and inference, as other servers speak it."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response
from msgspec import Meta, Struct
from numpy.typing import NDArray

import promptboost
from promptboost.errors import PromptBoostError
from promptboost.serve.batcher import Outcome, ScoredImage
from promptboost.serve.limits import RequestError
from promptboost.serve.messages import (
    base64_bytes,
    check_number,
    decoded_json,
    json_content,
    json_response,
)
from promptboost.serve.service import RunVersion, ServedRun, Service, explanations

IMAGE, EMBEDDING = "image", "embedding"
LABEL, PROBABILITIES, EXPLANATION = "label", "probabilities", "explanation"


class Tensor(Struct, kw_only=True):
    """A tensor of a request: `image`, BYTES of files in base64, or `embedding`, FP32 of rows."""

    name: str
    datatype: str
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=2**31)]], Meta(min_length=1, max_length=4)]
    data: list[Any]
    parameters: dict[str, Any] | None = None


class WantedTensor(Struct, kw_only=True):
    """A tensor of the answer that is wanted."""

    name: str
    parameters: dict[str, Any] | None = None


class InferMessage(Struct, kw_only=True):
    """A request for inference."""

    inputs: Annotated[list[Tensor], Meta(min_length=1, max_length=1)]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[WantedTensor] | None = None


class InferredTensor(Struct):
    """A tensor of an answer."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]


class InferAnswer(Struct):
    """What a run says: labels, probabilities by class, and explanations where they are wanted."""

    model_name: str
    model_version: str
    outputs: list[InferredTensor]
    id: str | None = None


class TensorNote(Struct):
    """What a tensor is like."""

    name: str
    datatype: str
    shape: list[int]


class ModelAnswer(Struct):
    """What a run takes and returns."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorNote]
    outputs: list[TensorNote]


class ServerAnswer(Struct):
    """What the server is."""

    name: str
    version: str
    extensions: list[str]


class LiveAnswer(Struct):
    """Whether the server lives."""

    live: bool


class ReadyAnswer(Struct):
    """Whether the server, or a run, is ready to answer."""

    ready: bool


class ModelReadyAnswer(Struct):
    """Whether a run is ready to answer."""

    name: str
    ready: bool


#: What the description of the server says about types.
DESCRIBED = (
    *(InferMessage, InferAnswer, ModelAnswer, ServerAnswer, LiveAnswer, ReadyAnswer),
    ModelReadyAnswer,
)


def router(service: Service) -> APIRouter:
    """Return the routes of the protocol."""
    routes = APIRouter(prefix="/v2", tags=["open inference protocol"])

    def told(name: str) -> dict[int | str, dict[str, Any]]:
        return {200: {"description": "So it is.", "content": json_content(name)}}

    @routes.get("", responses=told("ServerAnswer"), summary="What the server is")
    async def server() -> Response:
        return json_response(ServerAnswer("promptboost", promptboost.__version__, []))

    @routes.get("/health/live", responses=told("LiveAnswer"), summary="Whether it lives")
    async def live() -> Response:
        return json_response(LiveAnswer(True))

    @routes.get("/health/ready", responses=told("ReadyAnswer"), summary="Whether it is ready")
    async def ready() -> Response:
        return json_response(ReadyAnswer(service.ready), 200 if service.ready else 503)

    @routes.get("/models/{name}", responses=told("ModelAnswer"), summary="What a run takes")
    @routes.get(
        "/models/{name}/versions/{version}",
        responses=told("ModelAnswer"),
        summary="What a version of a run takes",
    )
    async def model(name: str, version: str | None = None) -> Response:
        return json_response(_metadata(_of(service, name, version)))

    @routes.get(
        "/models/{name}/ready", responses=told("ModelReadyAnswer"), summary="Whether a run is ready"
    )
    @routes.get(
        "/models/{name}/versions/{version}/ready",
        responses=told("ModelReadyAnswer"),
        summary="Whether a version of a run is ready",
    )
    async def model_ready(name: str, version: str | None = None) -> Response:
        run = _of(service, name, version)
        answer = ModelReadyAnswer(run.name, service.ready)
        return json_response(answer, 200 if service.ready else 503)

    sent = {"requestBody": {"required": True, "content": json_content("InferMessage")}}

    @routes.post(
        "/models/{name}/infer",
        responses=told("InferAnswer"),
        openapi_extra=sent,
        summary="Answer for images or embeddings",
    )
    @routes.post(
        "/models/{name}/versions/{version}/infer",
        responses=told("InferAnswer"),
        openapi_extra=sent,
        summary="Answer for images or embeddings by one version",
    )
    async def infer(request: Request, name: str, version: str | None = None) -> Response:
        run = _of(service, name, version)
        message = decoded_json(await request.body(), InferMessage)
        return json_response(await _inferred(service, run, message))

    return routes


def _of(service: Service, name: str, version: str | None) -> ServedRun:
    run = service.run(name)
    if version is not None and version != str(run.current.number):
        raise RequestError(404, "unknown run", f"only version {run.current.number} answers")
    return run


def _metadata(run: ServedRun) -> ModelAnswer:
    classes, dim = len(run.current.head.class_names), run.current.head.dim
    return ModelAnswer(
        run.name,
        [str(run.current.number)],
        "promptboost",
        [TensorNote(IMAGE, "BYTES", [-1]), TensorNote(EMBEDDING, "FP32", [-1, dim])],
        [
            TensorNote(LABEL, "BYTES", [-1]),
            TensorNote(PROBABILITIES, "FP32", [-1, classes]),
            TensorNote(EXPLANATION, "BYTES", [-1]),
        ],
    )


async def _inferred(service: Service, run: ServedRun, message: InferMessage) -> InferAnswer:
    wanted = [output.name for output in message.outputs or ()] or [LABEL, PROBABILITIES]
    if unknown := set(wanted) - {LABEL, PROBABILITIES, EXPLANATION}:
        raise RequestError(
            422, "request", f"{len(unknown)} of the outputs that are wanted are not known"
        )
    tensor = message.inputs[0]
    if "binary_data_size" in (tensor.parameters or {}):
        raise RequestError(422, "request", "tensors are taken as JSON, not as binary data")
    if (tensor.name, tensor.datatype) == (IMAGE, "BYTES"):
        version, outcomes = await service.answer(run, _images(service, tensor))
    elif (tensor.name, tensor.datatype) == (EMBEDDING, "FP32"):
        rows = _rows(service, tensor, run.current.head.dim)
        try:
            version, outcomes = await service.answer_rows(run, rows)
        except PromptBoostError as error:
            raise RequestError(422, "request", f"the embeddings cannot be used: {error}") from None
    else:
        raise RequestError(
            422, "request", f"send one tensor: {IMAGE} of BYTES, or {EMBEDDING} of FP32"
        )
    answered = _all_answered(outcomes)
    # Explanations take a while, and others wait for the event loop.
    outputs = await asyncio.to_thread(
        lambda: [_output(name, version, answered) for name in dict.fromkeys(wanted)]
    )
    return InferAnswer(run.name, str(version.number), outputs, message.id)


def _images(service: Service, tensor: Tensor) -> list[Any]:
    if len(tensor.shape) > 2 or int(np.prod(tensor.shape)) != len(tensor.data):
        raise RequestError(422, "request", "the shape of the tensor is not that of its data")
    check_number(len(tensor.data), service.limits)
    if not all(isinstance(item, str) for item in tensor.data):
        raise RequestError(422, "request", "an image is its file in base64, as a text")
    return [
        (f"image {number}", lambda item=item: base64_bytes(item))
        for number, item in enumerate(tensor.data, start=1)
    ]


def _rows(service: Service, tensor: Tensor, dim: int) -> NDArray[np.float32]:
    """Return a tensor of embeddings as a matrix; its data may be nested or flat."""
    shape = tensor.shape if len(tensor.shape) > 1 else [1, *tensor.shape]
    if len(shape) != 2 or shape[1] != dim:
        raise RequestError(
            422, "request", f"embeddings have the shape [n, {dim}] with the encoder of this run"
        )
    check_number(shape[0], service.limits)
    flat = list(chain(*tensor.data)) if _is_nested(tensor.data) else tensor.data
    if len(flat) != shape[0] * dim or any(type(item) not in (int, float) for item in flat):
        raise RequestError(422, "request", "the data of the tensor are not numbers of its shape")
    try:
        with np.errstate(over="ignore"):  # what is too large is found below
            rows = np.array(flat, dtype=np.float64).astype(np.float32).reshape(shape)
    except OverflowError:
        rows = np.full(shape, np.inf, dtype=np.float32)
    if not np.isfinite(rows).all():
        raise RequestError(422, "request", "some numbers of the tensor are too large")
    return rows


def _is_nested(data: Sequence[Any]) -> bool:
    return bool(data) and all(isinstance(item, list) for item in data)


def _all_answered(outcomes: Sequence[Outcome]) -> list[ScoredImage]:
    """Return the answers; a tensor has no place for an image that has none."""
    answered: list[ScoredImage] = []
    for number, outcome in enumerate(outcomes, start=1):
        if not isinstance(outcome, ScoredImage):
            status = outcome.status if isinstance(outcome, RequestError) else 422
            raise RequestError(status, "no image left", f"image {number}: {outcome}")
        answered.append(outcome)
    return answered


def _output(name: str, version: RunVersion, answered: Sequence[ScoredImage]) -> InferredTensor:
    names = version.head.class_names
    if name == LABEL:
        labels = [names[int(one.probabilities.argmax())] for one in answered]
        return InferredTensor(name, "BYTES", [len(labels)], labels)
    if name == PROBABILITIES:
        flat = [float(chance) for one in answered for chance in one.probabilities]
        return InferredTensor(name, "FP32", [len(answered), len(names)], flat)
    records = explanations(version, np.stack([one.embedding for one in answered]))
    texts = [msgspec.json.encode(record).decode() for record in records]
    return InferredTensor(name, "BYTES", [len(texts)], texts)

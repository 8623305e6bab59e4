"""The application: the routes of the server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from http import HTTPStatus
from os import PathLike
from typing import Any

import msgspec
import numpy as np
from fastapi import FastAPI, Request, Response
from msgspec import UNSET, Struct
from starlette.exceptions import HTTPException

import promptboost
from promptboost.data.memory import scale_embeddings
from promptboost.errors import EmbeddingError, PromptBoostError
from promptboost.model.prediction import RULE_FIELDS, Prediction
from promptboost.run.predict import ScoredRow, decide
from promptboost.serve.gate import LOOPBACK_NAMES, Gate
from promptboost.serve.limits import MIB, Limits, RequestError
from promptboost.serve.messages import (
    ErrorAnswer,
    PredictAnswer,
    PredictMessage,
    PredictOptions,
    RunAnswer,
    RunsAnswer,
    Sentence,
    SentencesAnswer,
    StateAnswer,
    json_content,
    json_response,
    read_request,
)
from promptboost.serve.service import RunVersion, ServedRun, Service, named_runs

_ABOUT = """Image classifiers made of plain sentences. `POST /predict` takes images as a form, as base64 in
JSON, or one file as the whole body; or embeddings in JSON."""
_MESSAGES = (
    ErrorAnswer,
    PredictAnswer,
    PredictMessage,
    PredictOptions,
    RunAnswer,
    RunsAnswer,
    SentencesAnswer,
    StateAnswer,
)
# Statuses of refused requests.
_REFUSALS = (400, 401, 403, 404, 405, 408, 413, 415, 421, 422, 429, 503)


def create_app(
    runs: Sequence[str | PathLike[str]] | Service,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    hosts: frozenset[str] | None = LOOPBACK_NAMES,
    watch: bool = False,
    **options: Any,
) -> FastAPI:
    """Make an application that serves the predictions of runs over HTTP.

    Parameters
    ----------
    runs : sequence of paths
        Run folders; a text may be ``NAME=RUN``. The first one is the default.
    token : str, optional
        Clients must send it as ``Authorization: Bearer TOKEN``.
    limits : Limits, optional
        Limits on requests.
    hosts : set of str, optional
        Allowed names of the server, against DNS rebinding; None for any. By default those of this machine.
    watch : bool, default=False
        Reload a run when its files change.
    **options
        `encoder`, `text_only`, `cache`, `device` and `allow_download`, as for
        ``promptboost.serve.service.Service``.

    Returns
    -------
    fastapi.FastAPI
        Its ``state.service`` holds the runs.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.model import PromptClassifier, PromptEnsemble, Round
    >>> banks = {"fire": {"something red": 1}, "ice": {"something blue": 1}}
    >>> ensemble = PromptEnsemble(("fire", "ice"), (Round("{}", banks, 0.0, 0.1),), encoder_id="fake:8-0")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     PromptClassifier(ensemble, cache=False).save(folder)
    ...     app = create_app([f"elements={folder}"], cache=False)
    >>> app.state.service.run("elements").current.classifier.class_names
    ('fire', 'ice')
    """
    if isinstance(runs, Service):
        service = runs
    else:
        named = named_runs(map(str, runs))
        service = Service(named, limits=limits, **options)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        watching = asyncio.ensure_future(service.watch()) if watch else None
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching

    app = FastAPI(
        title="promptboost",
        version=promptboost.__version__,
        description=_ABOUT,
        lifespan=lifespan,
        # Their pages load scripts from other servers.
        docs_url=None,
        redoc_url=None,
        responses={
            status: {"description": HTTPStatus(status).phrase, "content": json_content(ErrorAnswer)}
            for status in _REFUSALS
        },
    )
    app.state.service = service
    _add_predict(app, service)
    _add_others(app, service)
    _describe(app, token is not None)
    app.add_middleware(
        Gate, limits=service.limits, metrics=service.metrics, token=token, hosts=hosts
    )
    return app


def _describe(app: FastAPI, has_token: bool) -> None:
    """Add the schemas of messages to the OpenAPI description of FastAPI."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        description = plain()
        components = description.setdefault("components", {})
        _, components["schemas"] = msgspec.json.schema_components(
            _MESSAGES, ref_template="#/components/schemas/{name}"
        )
        if has_token:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            description["security"] = [{"token": []}]
        return description

    app.openapi = openapi  # type: ignore[method-assign]


def _returns(kind: type[Struct] | str) -> dict[str, Any]:
    """Return what the description says of an endpoint that returns a message, or text of a type."""
    content = (
        {kind: {"schema": {"type": "string"}}} if isinstance(kind, str) else json_content(kind)
    )
    return {
        "responses": {200: {"description": "The response.", "content": content}},
        "response_model": None,
    }


def _add_others(app: FastAPI, service: Service) -> None:
    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        texts = {
            404: "there is nothing at this address; see /openapi.json",
            405: f"this address takes {headers.get('Allow', 'another method')}; see /openapi.json",
        }
        text = texts.get(error.status_code, "the request cannot be answered")
        return json_response(ErrorAnswer(text), error.status_code, headers)

    @app.get("/healthz", summary="Whether it is alive", **_returns(StateAnswer))
    async def health() -> Response:
        return json_response(StateAnswer("alive"))

    @app.get("/readyz", summary="Whether it is ready", **_returns(StateAnswer))
    async def ready() -> Response:
        if service.ready:
            return json_response(StateAnswer("ready"))
        return json_response(StateAnswer("loading"), 503)

    @app.get("/metrics", summary="Metrics for Prometheus", **_returns("text/plain"))
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/runs", summary="All runs", **_returns(RunsAnswer))
    async def runs() -> Response:
        return json_response(RunsAnswer([run.answer() for run in service.runs.values()]))

    @app.get("/runs/{name}", summary="A run", **_returns(RunAnswer))
    async def run(name: str) -> Response:
        return json_response(service.run(name).answer())

    @app.get(
        "/runs/{name}/sentences", summary="Sentences of each class", **_returns(SentencesAnswer)
    )
    async def sentences(name: str) -> Response:
        version = service.run(name).current
        ensemble = version.classifier.ensemble
        classes = {
            class_name: [Sentence(*pair) for pair in ensemble.prompts(class_name).items()]
            for class_name in ensemble.class_names
        }
        return json_response(SentencesAnswer(name, version.number, classes))

    @app.get("/runs/{name}/card", summary="The model card", **_returns("text/markdown"))
    async def card(name: str) -> Response:
        text = service.run(name).current.card
        if text is None:
            raise RequestError(404, "no card", "this run was never measured, so it has no card")
        return Response(text, media_type="text/markdown")


def _add_predict(app: FastAPI, service: Service) -> None:
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    form = {
        "allOf": [{"$ref": "#/components/schemas/PredictOptions"}],
        "type": "object",
        "properties": {"image": {"type": "array", "items": file, "minItems": 1}},
    }
    content = {
        **json_content(PredictMessage),
        "multipart/form-data": {"schema": form},
        "image/*": {"schema": {}},
    }
    about = {
        **_returns(PredictAnswer),
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }

    large_bodies = asyncio.Semaphore(1)

    @app.post("/predict", summary="Predict with the first run", **about)
    @app.post("/runs/{name}/predict", summary="Predict with a run", **about)
    async def predict(request: Request, name: str | None = None) -> Response:
        run = service.run(name)
        version = run.current
        # Request.body() would make a copy, and keep it.
        body = b"".join([part async for part in request.stream() if part])
        # While it is parsed, a body takes more than twice its size.
        async with large_bodies if len(body) > MIB else nullcontext():
            images, embeddings, options = await read_request(
                *(body, request.headers, request.query_params, service.limits),
                version.classifier.head.dim,
            )
        del body
        warning = None
        if embeddings is not None:
            try:
                rows, warning = scale_embeddings(embeddings)
            except EmbeddingError as error:
                raise RequestError(422, "request", str(error)) from None
            scored = await service.score_rows(run, version, rows.astype(np.float32))
        else:
            scored = await service.answer(run, version, images)
        answer = await _predicted(run, version, scored, options, warning)
        if options.labels:
            return json_response([prediction.labels() for prediction in answer.predictions])
        return json_response(answer)


async def _predicted(
    run: ServedRun,
    version: RunVersion,
    scored: Sequence[ScoredRow | Prediction],
    options: PredictOptions,
    warning: str | None = None,
) -> PredictAnswer:
    """Return predictions for scored images; others have an error."""
    classifier = version.classifier
    rows = [image.rows[0] for image in scored if isinstance(image, ScoredRow)]
    rules = {name: getattr(options, name) for name in ("min_probability", *RULE_FIELDS)}
    warnings = [] if warning is None else [warning]
    decided = decide(classifier, scored, options.top_k, say=warnings.append, **rules)
    adjusts = options.class_priors is not None
    try:
        predictions = await asyncio.to_thread(list, decided) if adjusts else list(decided)
        explained = iter(
            await asyncio.to_thread(classifier.explain, np.stack(rows)) if options.explain else ()
        )
    except PromptBoostError as error:
        raise RequestError(422, "request", str(error)) from None
    for number, each in enumerate(predictions):
        if options.explain and each.error is None:
            why = {**next(explained).record(), "image": each.image}
            predictions[number] = msgspec.structs.replace(each, explanation=why)
    return PredictAnswer(
        *(run.name, version.number, predictions),
        warning="; ".join(warnings) if warnings else UNSET,
        changed=sum(each.changed for each in predictions) if adjusts else UNSET,
    )

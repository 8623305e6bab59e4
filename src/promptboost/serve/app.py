"""The application: the routes of the server."""

import asyncio
import html
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET, Struct
from starlette.exceptions import HTTPException

import promptboost
from promptboost.model.prediction import Prediction
from promptboost.serve.batcher import Outcome, ScoredImage
from promptboost.serve.gate import LOOPBACK_NAMES, Gate
from promptboost.serve.limits import Limits, RequestError
from promptboost.serve.messages import (
    ErrorAnswer,
    PredictAnswer,
    PredictMessage,
    PredictOptions,
    PredictRequest,
    ReloadAnswer,
    RunAnswer,
    RunsAnswer,
    Sentence,
    SentencesAnswer,
    StateAnswer,
    json_content,
    json_response,
    json_schemas,
    read_request,
)
from promptboost.serve.service import RunVersion, ServedRun, Service, explanations, named_runs

_ABOUT = """Image classifiers made of plain sentences. `POST /predict` takes images as a form, as base64 in
JSON, or one file as the whole body; or embeddings in JSON."""
_REFUSALS = {
    400: "The request cannot be parsed.",
    401: "The token is missing or wrong.",
    403: "Not allowed.",
    404: "Not found.",
    405: "The address takes another method.",
    408: "The request came too slowly.",
    413: "The request, or an image in it, is too large.",
    415: "The content type is not supported.",
    421: "The server has another name.",
    422: "The request cannot be used; the error says why.",
    429: "Too many requests; see Retry-After.",
    503: "Not ready, or about to stop.",
}
_CARD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width"><style>body{{max-width:50em;margin:auto;padding:1em;
color-scheme:light dark}}pre{{white-space:pre-wrap}}</style><pre>{card}</pre></html>
"""


def create_app(
    runs: "Sequence[str | PathLike[str]] | Mapping[str, str | PathLike[str]] | Service",
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
    runs : sequence of paths, or mapping from name to path
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
    ...     app = create_app({"elements": folder}, cache=False)
    >>> app.state.service.run("elements").current.classifier.class_names
    ('fire', 'ice')
    """
    if isinstance(runs, Service):
        service = runs
    else:
        if isinstance(runs, Mapping):
            named = {name: Path(path) for name, path in runs.items()}
        else:
            named = named_runs(str(path) for path in runs)
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
            await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="promptboost",
        version=promptboost.__version__,
        description=_ABOUT,
        lifespan=lifespan,
        # Their pages load scripts from other servers.
        docs_url=None,
        redoc_url=None,
        responses={
            status: {"description": text, "content": json_content(ErrorAnswer)}
            for status, text in _REFUSALS.items()
        },
    )
    app.state.service = service
    _add_errors(app, service)
    endpoint = _Endpoints(app)
    _add_predict(endpoint, service)
    _add_health(endpoint, service)
    _add_runs(endpoint, service, token is not None)
    endpoint.describe(token is not None)
    app.add_middleware(Gate, service=service, token=token, hosts=hosts)
    return app


def _add_errors(app: FastAPI, service: Service) -> None:
    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> Response:
        service.metrics.rejected(error.reason)
        return json_response(ErrorAnswer(str(error)), error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        texts = {
            404: "there is nothing at this address; /openapi.json describes those there are",
            405: f"this address takes {headers.get('Allow', 'another method')}; /openapi.json describes it",
        }
        text = texts.get(error.status_code, "the request cannot be answered")
        return json_response(ErrorAnswer(text), error.status_code, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return json_response(ErrorAnswer("the request cannot be used"), 422)


Handler = Callable[..., Awaitable[Struct | Response]]


@dataclass
class _Endpoints:
    """Adds endpoints to an application, and their messages to its OpenAPI description."""

    app: FastAPI
    messages: set[type[Struct]] = field(default_factory=lambda: {ErrorAnswer})

    def __call__(
        self,
        path: str,
        summary: str,
        tag: str,
        returns: type[Struct] | tuple[str, ...],
        *,
        method: str = "GET",
        statuses: Mapping[int, str] = MappingProxyType({200: "The response."}),
        **extra: Any,
    ) -> Callable[[Handler], Handler]:
        """Add a handler that returns a message, or a response: a message too, or text of some types."""
        if isinstance(returns, tuple):
            content = {kind: {"schema": {"type": "string"}} for kind in returns}
        else:
            self.messages.add(returns)
            content = json_content(returns)
        responses = {
            status: {"description": s, "content": content} for status, s in statuses.items()
        }

        def register(handler: Handler) -> Handler:
            @wraps(handler)
            async def respond(*args: Any, **fields: Any) -> Response:
                answer = await handler(*args, **fields)
                return answer if isinstance(answer, Response) else json_response(answer)

            self.app.add_api_route(
                path,
                respond,
                methods=[method],
                summary=summary,
                tags=[tag],
                responses=responses,  # type: ignore[arg-type]
                response_model=None,
                openapi_extra=extra,
            )
            return handler

        return register

    def describe(self, has_token: bool) -> None:
        """Add the schemas of messages to the OpenAPI description of FastAPI."""
        plain = self.app.openapi

        def openapi() -> dict[str, Any]:
            description = plain()
            components = description.setdefault("components", {})
            components["schemas"] = json_schemas(self.messages)
            if has_token:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                description["security"] = [{"token": []}]
            for address in description["paths"].values():
                for operation in address.values():
                    # FastAPI's own error for an unusable request is never sent.
                    operation["responses"]["422"] = {
                        "description": _REFUSALS[422],
                        "content": json_content(ErrorAnswer),
                    }
            return description

        self.app.openapi = openapi  # type: ignore[method-assign]


def _add_health(endpoint: _Endpoints, service: Service) -> None:
    @endpoint("/healthz", "Whether it is alive", "health", StateAnswer)
    async def health() -> StateAnswer:
        return StateAnswer("alive")

    @endpoint("/readyz", "Whether it is ready", "health", StateAnswer)
    async def ready() -> StateAnswer | Response:
        if service.ready:
            return StateAnswer("ready")
        return json_response(StateAnswer("stopping" if service.stopping else "loading"), 503)

    @endpoint("/metrics", "Metrics for Prometheus", "health", ("text/plain",))
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_runs(endpoint: _Endpoints, service: Service, has_token: bool) -> None:
    @endpoint("/runs", "All runs", "runs", RunsAnswer)
    async def runs() -> RunsAnswer:
        return RunsAnswer([run.answer() for run in service.runs.values()])

    @endpoint("/runs/{name}", "A run", "runs", RunAnswer)
    async def run(name: str) -> RunAnswer:
        return service.run(name).answer()

    @endpoint("/runs/{name}/sentences", "The sentences of each class", "runs", SentencesAnswer)
    async def sentences(name: str) -> SentencesAnswer:
        version = service.run(name).current
        ensemble = version.classifier.ensemble
        classes = {
            class_name: [Sentence(*pair) for pair in ensemble.prompts(class_name).items()]
            for class_name in ensemble.class_names
        }
        return SentencesAnswer(name, version.number, classes)

    @endpoint("/runs/{name}/card", "The model card", "runs", ("text/markdown", "text/html"))
    async def card(request: Request, name: str) -> Response:
        text = service.run(name).current.card
        if text is None:
            raise RequestError(404, "no card", "this run was never measured, so it has no card")
        if "text/html" in request.headers.get("accept", ""):
            page = _CARD.format(name=html.escape(name), card=html.escape(text))
            return Response(page, media_type="text/html")
        return Response(text, media_type="text/markdown")

    statuses = {200: "The response.", 409: "A version is broken."}

    @endpoint(
        "/reload", "Reload changed runs", "runs", ReloadAnswer, method="POST", statuses=statuses
    )
    async def reload() -> ReloadAnswer | Response:
        if not has_token:
            raise RequestError(403, "token", "reloading over HTTP needs a server with a token")
        outcomes = await asyncio.to_thread(service.reload)
        broken = [outcome.name for outcome in outcomes if outcome.outcome == "broken"]
        if not broken:
            return ReloadAnswer(outcomes)
        error = f"{broken[0]}: {service.run(broken[0]).problem}"
        return json_response(ReloadAnswer(outcomes, error), 409)


def _add_predict(endpoint: _Endpoints, service: Service) -> None:
    endpoint.messages |= {PredictOptions, PredictMessage}
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
    body: dict[str, Any] = {
        "method": "POST",
        "requestBody": {"required": True, "content": content},
    }
    about = "predictions", PredictAnswer

    @endpoint("/predict", "Predict with the first run", *about, **body)
    @endpoint("/runs/{name}/predict", "Predict with a run", *about, **body)
    async def predict(request: Request, name: str | None = None) -> PredictAnswer:
        run = service.run(name)
        version = run.current
        message = await read_request(
            await request.body(),
            request.headers,
            request.query_params,
            service.limits,
            version.head.dim,
        )
        if message.embeddings is not None:
            outcomes = await service.score_rows(run, version, message.embeddings)
            names = [f"embedding {number}" for number in range(1, len(outcomes) + 1)]
        else:
            version, outcomes = await service.answer(run, message.images)
            names = [image_name for image_name, _ in message.images]
        return await _predicted(run, version, names, outcomes, message)


async def _predicted(
    run: ServedRun,
    version: RunVersion,
    names: Sequence[str],
    outcomes: Sequence[Outcome],
    message: PredictRequest,
) -> PredictAnswer:
    """Return predictions; images that cannot be read have an error, unless all are such images."""
    options = message.options
    scored = [outcome for outcome in outcomes if isinstance(outcome, ScoredImage)]
    if not scored:
        first = outcomes[0]
        status = first.status if isinstance(first, RequestError) else 422
        raise RequestError(status, "no image left", f"{names[0]}: {first}")
    explained: Iterator[dict[str, Any]] = iter(())
    if options.explain:
        rows = np.stack([outcome.embedding for outcome in scored])
        explained = iter(await asyncio.to_thread(explanations, version, rows))
    predictions = [
        Prediction.of(
            *(name, version.head.class_names, outcome.probabilities),
            top_k=options.top_k,
            min_probability=options.min_probability,
            explanation={**next(explained), "image": name} if options.explain else UNSET,
        )
        if isinstance(outcome, ScoredImage)
        else Prediction(image=name, error=str(outcome))
        for name, outcome in zip(names, outcomes, strict=True)
    ]
    return PredictAnswer(run.name, version.number, predictions)

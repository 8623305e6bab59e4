"""The HTTP application of the workbench: a page on the loopback and its API."""

import asyncio
import base64
import binascii
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
import numpy as np
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from promptboost.data.decode import ImageError, read_image
from promptboost.encoders.embedder import WORKING_SIDE
from promptboost.errors import PromptBoostError
from promptboost.model.edits import Change
from promptboost.serve.batcher import unusable_image
from promptboost.serve.gate import LOOPBACK_NAMES, Gate
from promptboost.serve.limits import MIB, Limits, RequestError
from promptboost.serve.messages import ErrorAnswer, json_response
from promptboost.serve.metrics import ServerMetrics
from promptboost.serve.server import Server, listen
from promptboost.threads import single_blas_thread
from promptboost.workbench.state import StaleError, Workbench

T = TypeVar("T")

_PAGE = {
    "/": ("workbench.html", "text/html; charset=utf-8"),
    "/workbench.css": ("workbench.css", "text/css; charset=utf-8"),
    "/workbench.js": ("workbench.js", "text/javascript; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src blob: data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Largest size of a JSON body.
_JSON_BYTES = 2**18

#: The fields of the JSON that is posted to ``/api/NAME``, with their defaults: the arguments of the method
#: of that name of the workbench, of its labels or of the service, which returns the answer.
_MESSAGES: dict[str, list[tuple[str, Any] | tuple[str, Any, Any]]] = {
    "edit": [("revision", int), ("change", Change)],
    "undo": [("revision", int)],
    "redo": [("revision", int)],
    "save": [("revision", int), ("name", str | None, None), ("reason", str, "")],
    "explain": [(name, str | None, None) for name in ("image", "dropped", "against")],
    "compare": [("before", str), ("after", str)],
    "refit": [("name", str)],
    "final": [("name", str)],
    "review": [("search", bool, False)],
    "label": [("image", str), ("label", str | None, None)],
    "grow": [("one", str), ("other", str)],
}


class WorkbenchService:
    """A workbench behind a gate: one thread uses it."""

    def __init__(self, workbench: Workbench, limits: Limits | None = None) -> None:
        self.workbench = workbench
        self.limits = limits or Limits(max_bytes=32 * MIB, max_held=128 * MIB, stop_seconds=10.0)
        self._thread = ThreadPoolExecutor(1, "workbench")

    async def do(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function in the thread of the workbench."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Write the remaining looks, and end the thread."""
        self._thread.submit(self.workbench.write_looks).result()
        self._thread.shutdown()

    async def reasons(self) -> dict[str, Any]:
        """Compute the influence of each sentence; raise if the draft is edited meanwhile."""
        workbench, steps = self.workbench, iter(self.workbench.reasons())
        revision = workbench.draft.revision
        while True:
            answer: dict[str, Any] | None = await self.do(steps.__next__)
            if workbench.draft.revision != revision:
                raise RequestError(409, "stale", "the draft was edited in the meantime")
            if answer is not None:
                return answer

    async def grow(self, one: str, other: str) -> dict[str, Any]:
        """Let the language model suggest sentences about two classes, and measure each."""
        # In another thread: the answer may take minutes.
        sentences = await asyncio.to_thread(self.workbench.request_sentences, one, other)
        suggestions = await self.do(self.workbench.suggestions, sentences)
        return {"suggestions": suggestions, "looks": self.workbench.looks}

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Embed an uploaded image and explain its prediction."""
        try:
            image = read_image(
                content, name, at_least=WORKING_SIDE, most=self.limits.max_image_memory
            )
        except ImageError as error:
            raise unusable_image(error, str(error)) from error
        row = np.asarray(self.workbench.embedder.encode_images([image]))[0]
        return self.workbench.explain(dropped=self.workbench.upload(name, row))


def create_workbench_app(service: WorkbenchService, token: str) -> FastAPI:
    """Return the application of a workbench; everything except the empty page requires the token."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(app, service.workbench)
    for address, (name, kind) in _PAGE.items():
        content = (files("promptboost.workbench") / "page" / name).read_bytes()
        page = Response(content, media_type=kind)
        app.add_route(address, lambda _, page=page: page)  # type: ignore[misc]
    workbench = service.workbench
    for name, fields in _MESSAGES.items():
        message = msgspec.defstruct(f"{name.title()}Message", fields, forbid_unknown_fields=True)
        owner = next(each for each in (workbench, workbench.labels, service) if hasattr(each, name))
        work = getattr(owner, name)
        _add_post(app, name, work if owner is service else partial(service.do, work), message)
    _add_others(app, service)
    app.add_middleware(
        Gate,
        limits=service.limits,
        metrics=ServerMetrics(),
        token=token,
        hosts=LOOPBACK_NAMES,
        open_paths=frozenset(_PAGE),
        policy=_POLICY,
    )
    return app


def _add_errors(app: FastAPI, workbench: Workbench) -> None:
    @app.exception_handler(StaleError)
    async def stale(_: Request, error: StaleError) -> Response:
        return json_response({"error": str(error), "revision": workbench.draft.revision}, 409)

    @app.exception_handler(PromptBoostError)
    async def unusable(_: Request, error: PromptBoostError) -> Response:
        if isinstance(error, RequestError):  # answered by the gate
            raise error
        return json_response(ErrorAnswer(str(error)), 422)

    @app.exception_handler(OSError)
    async def unwritten(_: Request, error: OSError) -> Response:
        return json_response(ErrorAnswer(f"{error}; nothing was lost, try again"), 507)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        message = "there is nothing at this address, or not for this method"
        return json_response(ErrorAnswer(message), error.status_code)


async def _read(request: Request, kind: type[T]) -> T:
    """Decode the JSON body of a request."""
    body = await request.body()
    if len(body) > _JSON_BYTES:
        raise RequestError(413, "bytes", "the request is too large for an edit")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(422, "message", f"the request is invalid: {error}") from error


def _add_post(
    app: FastAPI,
    name: str,
    work: Callable[..., Awaitable[dict[str, Any]]],
    kind: type[msgspec.Struct],
) -> None:
    """Answer messages with what a function returns for their fields."""

    @app.post(f"/api/{name}")
    async def post(request: Request) -> Response:
        message = await _read(request, kind)
        return json_response(await work(**msgspec.structs.asdict(message)))


def _add_others(app: FastAPI, service: WorkbenchService) -> None:
    workbench = service.workbench

    @app.get("/api/state")
    async def state() -> Response:
        await service.do(workbench.find_versions)
        return json_response(await service.do(workbench.state))

    @app.get("/api/revision")
    async def revision() -> Response:
        return json_response({"revision": workbench.draft.revision, "looks": workbench.looks})

    @app.get("/api/reasons")
    async def reasons() -> Response:
        return json_response(await service.reasons())

    @app.post("/api/image")
    async def image(request: Request) -> Response:
        name = unquote(request.headers.get("x-name", "image"))[:200] or "image"
        return json_response(await service.do(service.upload, name, await request.body()))

    @app.get("/api/thumbnail")
    async def thumbnail(image: str = "") -> Response:
        url = await service.do(workbench.thumbnail, image)
        with suppress(binascii.Error):
            return Response(base64.b64decode(url.partition(",")[2]), media_type="image/jpeg")
        raise RequestError(404, "thumbnail", "this image cannot be shown")


def serve_workbench(
    workbench: Workbench,
    *,
    port: int = 0,
    token: str | None = None,
    limits: Limits | None = None,
    started: Callable[[str], None] = lambda address: None,
    stop: threading.Event | None = None,
) -> None:
    """Serve a workbench on the loopback until stopped; `started` is called with the address to open.

    It stops on SIGTERM, Ctrl-C, and when `stop` is set, for use in a thread. The token is in the fragment
    of the address, which is not sent to servers.
    """
    token = token or secrets.token_urlsafe()
    service, stop = WorkbenchService(workbench, limits), stop or threading.Event()
    app = create_workbench_app(service, token)
    with listen("127.0.0.1", port) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/#token={token}"
        # An edit takes milliseconds: more BLAS threads would slow it down.
        with single_blas_thread():
            # SIGHUP: the terminal was closed.
            server = Server(
                app, service.limits, lambda: started(address), hangup=stop.set, stop=stop
            )
            server.run(sockets=[listening])

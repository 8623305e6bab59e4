"""The workbench in a browser: a page on the loopback, and the addresses it asks."""

import asyncio
import base64
import binascii
import secrets
import threading
from collections.abc import AsyncIterator, Callable
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
from promptboost.model.change import Change
from promptboost.run.draft import StaleError
from promptboost.serve.gate import LOOPBACK_NAMES, Gate
from promptboost.serve.limits import MIB, Limits, RequestError
from promptboost.serve.messages import ErrorAnswer, json_response
from promptboost.serve.metrics import ServerMetrics
from promptboost.serve.server import Server, listen
from promptboost.threads import single_blas_thread
from promptboost.workbench.workbench import Workbench

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
#: Bytes of anything that is no image.
_JSON_BYTES = 2**18
_LOOKS_SECONDS = 2.0


class EditMessage(msgspec.Struct, forbid_unknown_fields=True):
    """An edit of the draft that somebody has seen."""

    revision: int
    change: Change


class StepMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A step back or forth, from the draft that somebody has seen."""

    revision: int


class SaveMessage(msgspec.Struct, forbid_unknown_fields=True):
    """What a version is called, and why it was made."""

    revision: int
    name: str | None = None
    reason: str = ""


class ExplainMessage(msgspec.Struct, forbid_unknown_fields=True):
    """An image that is known here: a held-out one by its name, or one that was sent."""

    image: str | None = None
    dropped: str | None = None
    against: str | None = None


class CompareMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Two versions by their names."""

    before: str
    after: str


class GrowMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Two classes that are mixed up."""

    one: str
    other: str


class Desk:
    """A workbench behind a gate: one thread works on it, and looks are written down now and then.

    Parameters
    ----------
    workbench : Workbench
        What is asked and edited.
    limits : Limits, optional
        Bounds on requests.
    stop : threading.Event, optional
        Set when the server shall stop.
    """

    def __init__(
        self,
        workbench: Workbench,
        limits: Limits | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.workbench = workbench
        self.limits = limits or Limits(max_bytes=32 * MIB, max_held=128 * MIB, stop_seconds=10.0)
        self.metrics = ServerMetrics()
        self._stop = stop or threading.Event()
        self._thread = ThreadPoolExecutor(1, "workbench")

    @property
    def stopping(self) -> bool:
        """Whether nothing new is begun any more."""
        return self._stop.is_set()

    @stopping.setter
    def stopping(self, value: bool) -> None:
        if value:
            self._stop.set()

    def reload(self) -> None:
        """Stop when the terminal is closed: there is nothing to load again."""
        self.stopping = True

    async def do(self, work: Callable[..., T], *given: Any, **named: Any) -> T:
        """Do something with the workbench, one after the other, in its own thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(work, *given, **named))

    async def write_looks(self) -> None:
        """Write looks into the run whenever nobody has edited for a while, for ever; the draft has them."""
        bench, seen = self.workbench, -1
        while True:
            await asyncio.sleep(_LOOKS_SECONDS)
            looks = bench.draft.looks
            if looks and seen == bench.draft.revision:
                total = await asyncio.to_thread(bench.counted, looks)
                if total is not None:
                    await self.do(bench.looks_written, looks, total)
            seen = bench.draft.revision

    def close(self) -> None:
        """Write down what is left, and end the thread."""
        self._thread.submit(self.workbench.write_looks).result()
        self._thread.shutdown()

    async def reasons(self) -> dict[str, Any]:
        """Work out the influence of each sentence; edits come in between, and end it."""
        bench, parts = self.workbench, iter(self.workbench.reasons())
        revision = bench.draft.revision
        while True:
            answer: dict[str, Any] | None = await self.do(parts.__next__)
            if bench.draft.revision != revision:
                raise RequestError(409, "stale", "the draft has been edited since")
            if answer is not None:
                return answer

    def embed(self, name: str, content: bytes) -> str:
        """Embed an image that was sent; return what it is called from now on."""
        try:
            image = read_image(
                content, name, at_least=WORKING_SIDE, most=self.limits.max_image_memory
            )
        except ImageError as error:
            status, reason = (413, "pixels") if error.bad.too_large else (422, "image")
            raise RequestError(status, reason, f"{name}: {error.bad.reason}") from error
        row = np.asarray(self.workbench.embedder.encode_images([image]))[0]
        return self.workbench.gallery.take(name, row)


def create_workbench_app(desk: Desk, token: str) -> FastAPI:
    """Make the application of a workbench; everything but the empty page asks for the token."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        looks = asyncio.ensure_future(desk.write_looks())
        try:
            yield
        finally:
            looks.cancel()
            with suppress(asyncio.CancelledError):
                await looks
            await asyncio.to_thread(desk.close)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(app, desk)
    _add_page(app)
    _add_edits(app, desk)
    _add_questions(app, desk)
    app.add_middleware(
        Gate,
        service=desk,
        token=token,
        hosts=LOOPBACK_NAMES,
        open_paths=frozenset(_PAGE),
        policy=_POLICY,
    )
    return app


def _add_errors(app: FastAPI, desk: Desk) -> None:
    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> Response:
        return json_response(ErrorAnswer(str(error)), error.status, error.headers)

    @app.exception_handler(StaleError)
    async def stale(_: Request, error: StaleError) -> Response:
        revision = desk.workbench.draft.revision
        return json_response({"error": str(error), "revision": revision}, 409)

    @app.exception_handler(PromptBoostError)
    async def unusable(_: Request, error: PromptBoostError) -> Response:
        return json_response(ErrorAnswer(str(error)), 422)

    @app.exception_handler(OSError)
    async def unwritten(_: Request, error: OSError) -> Response:
        return json_response(ErrorAnswer(f"{error}; nothing was lost, try again"), 507)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        text = "there is nothing at this address, or it is not asked in this way"
        return json_response(ErrorAnswer(text), error.status_code)


def _add_page(app: FastAPI) -> None:
    folder = files("promptboost.serve") / "page"

    def add(address: str, name: str, kind: str) -> None:
        content = (folder / name).read_bytes()

        @app.get(address)
        async def page() -> Response:
            return Response(content, media_type=kind)

    for address, (name, kind) in _PAGE.items():
        add(address, name, kind)


async def _read(request: Request, kind: type[T]) -> T:
    """Read the JSON of a request."""
    body = await request.body()
    if len(body) > _JSON_BYTES:
        raise RequestError(413, "bytes", "this is too much for an edit")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(422, "message", f"this cannot be understood: {error}") from error


def _add_edits(app: FastAPI, desk: Desk) -> None:
    bench = desk.workbench

    def after(work: Callable[..., object], *given: Any) -> dict[str, Any]:
        work(*given)
        return bench.state()

    @app.get("/api/state")
    async def state() -> Response:
        await desk.do(bench.find_versions)
        return json_response(await desk.do(bench.state))

    @app.get("/api/revision")
    async def revision() -> Response:
        return json_response({"revision": bench.draft.revision, "looks": bench.looks})

    @app.post("/api/edit")
    async def edit(request: Request) -> Response:
        sent = await _read(request, EditMessage)
        return json_response(await desk.do(after, bench.edit, sent.revision, sent.change))

    @app.post("/api/undo")
    async def undo(request: Request) -> Response:
        sent = await _read(request, StepMessage)
        return json_response(await desk.do(after, bench.undo, sent.revision))

    @app.post("/api/redo")
    async def redo(request: Request) -> Response:
        sent = await _read(request, StepMessage)
        return json_response(await desk.do(after, bench.redo, sent.revision))

    @app.post("/api/save")
    async def save(request: Request) -> Response:
        sent = await _read(request, SaveMessage)
        edited = await desk.do(bench.save, sent.revision, sent.name, sent.reason)
        told = {"saved_as": str(edited.run), "notes": list(edited.notes)}
        return json_response({**await desk.do(bench.state), **told})


def _add_questions(app: FastAPI, desk: Desk) -> None:
    bench = desk.workbench

    @app.get("/api/reasons")
    async def reasons() -> Response:
        return json_response(await desk.reasons())

    @app.post("/api/image")
    async def image(request: Request) -> Response:
        name = unquote(request.headers.get("x-name", "image"))[:200] or "image"
        taken = await desk.do(desk.embed, name, await request.body())
        return json_response(await desk.do(bench.explain, dropped=taken))

    @app.post("/api/explain")
    async def explain(request: Request) -> Response:
        sent = await _read(request, ExplainMessage)
        given = msgspec.structs.asdict(sent)
        return json_response(await desk.do(bench.explain, **given))

    @app.get("/api/thumbnail")
    async def thumbnail(image: str = "") -> Response:
        address = await desk.do(bench.gallery.thumbnail, image)
        with suppress(binascii.Error):
            return Response(base64.b64decode(address.partition(",")[2]), media_type="image/jpeg")
        raise RequestError(404, "thumbnail", "this image cannot be shown")

    @app.post("/api/compare")
    async def compare(request: Request) -> Response:
        sent = await _read(request, CompareMessage)
        return json_response(await desk.do(bench.compare, sent.before, sent.after))

    @app.post("/api/grow")
    async def grow(request: Request) -> Response:
        sent = await _read(request, GrowMessage)
        sentences = await asyncio.to_thread(bench.ask, sent.one, sent.other)
        found = await desk.do(bench.suggestions, sentences)
        return json_response({"suggestions": found, "looks": bench.looks})


def serve_workbench(
    workbench: Workbench,
    *,
    port: int = 0,
    token: str | None = None,
    limits: Limits | None = None,
    started: Callable[[str], None] = lambda address: None,
    stop: threading.Event | None = None,
) -> None:
    """Show a workbench on the loopback until told to stop; `started` is told the address to open.

    It stops on SIGTERM, on Ctrl-C, and when `stop` is set: in a thread there are no signals. The token is
    in the fragment of the address: it reaches the page, and never a server's log.
    """
    chosen = token or secrets.token_urlsafe()
    desk = Desk(workbench, limits, stop)
    app = create_workbench_app(desk, chosen)
    with listen("127.0.0.1", port) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/#token={chosen}"
        # An edit is worked out in milliseconds: threads that wait for the next product would slow it down.
        with single_blas_thread():
            Server(app, desk, lambda: started(address)).run(sockets=[listening])

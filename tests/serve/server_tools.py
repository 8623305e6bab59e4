"""A real server on the loopback, and a client for good and bad requests."""

import base64
import http.client
import io
import json
import secrets
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from promptboost.encoders.fake import FakeEncoder
from promptboost.model import PromptClassifier, PromptEnsemble, Round
from promptboost.serve.app import create_app
from promptboost.serve.limits import Limits
from promptboost.serve.server import Server, listen
from promptboost.serve.service import Service

TOKEN = "a-token-for-tests-only"
SLOW = "tests.serve.server_tools:SlowEncoder"


class SlowEncoder(FakeEncoder):
    """A slow encoder that records the sizes of its batches."""

    batches: ClassVar[list[int]] = []
    seconds = 0.2

    def __init__(self, **_):
        super().__init__(32, 0)
        self._warm = False

    def encode_images(self, images):
        images = list(images)
        if self._warm:
            self.batches.append(len(images))
            time.sleep(self.seconds)
        self._warm = True
        return super().encode_images(images)


def write_run(folder, cold="something blue", name="ice", encoder="fake:32-0"):
    """Write the files of an estimator: ensemble and heads without metrics."""
    banks = {"fire": {"something red": 1}, name: {cold: 1}}
    ensemble = PromptEnsemble(("fire", name), (Round("{}", banks, 0.0, 0.1),), encoder_id=encoder)
    PromptClassifier(ensemble, "fake:32-0", cache=False).save(folder)
    ensemble.save(folder / "ensemble.json")
    return folder


def png(color="red", size=(16, 12)):
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


def text_of(data):
    return base64.b64encode(data).decode()


def form(*files, **fields):
    """Return the body and content type of a form; a file is bytes, or a name and bytes."""
    boundary = secrets.token_hex(8)
    parts = []
    for number, file in enumerate(files):
        name, data = (f"{number}.png", file) if isinstance(file, bytes) else file
        head = f'Content-Disposition: form-data; name="image"; filename="{name}"'
        parts.append(head.encode() + b"\r\n\r\n" + data)
    for name, value in fields.items():
        parts.append(f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode())
    line = f"--{boundary}".encode()
    body = b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + b"--\r\n"
    return body, f"multipart/form-data; boundary={boundary}"


@dataclass
class Reply:
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        assert set(self.json) == {"error"}
        return self.json["error"]


@dataclass
class Client:
    """A client; each request has a new connection, unless one is given."""

    port: int
    token: str | None = None
    timeout: float = 30.0

    def ask(self, method, path, body=None, kind=None, headers=None, connection=None):
        sent = dict(headers or {})
        if kind:
            sent["Content-Type"] = kind
        if self.token:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        own = connection or http.client.HTTPConnection("127.0.0.1", self.port, self.timeout)
        try:
            own.request(method, path, body, sent)
            answer = own.getresponse()
            named = {name.lower(): value for name, value in answer.headers.items()}
            return Reply(answer.status, named, answer.read())
        finally:
            if connection is None:
                own.close()

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def post_json(self, path, record, **options):
        return self.ask("POST", path, json.dumps(record), "application/json", **options)

    def post_form(self, path, *files, headers=None, **fields):
        return self.ask("POST", path, *form(*files, **fields), headers)

    def raw(self, data, pause=0.0, chunk=None):
        """Send raw bytes and return the response until the connection is closed."""
        parts = []
        with socket.create_connection(("127.0.0.1", self.port), self.timeout) as wire:
            with suppress(ConnectionError):  # it may be closed before all is sent
                for start in range(0, len(data), chunk or len(data) or 1):
                    wire.sendall(data[start : start + (chunk or len(data))])
                    time.sleep(pause)
            with suppress(ConnectionError):
                while part := wire.recv(65536):
                    parts.append(part)
        return b"".join(parts)


@contextmanager
def running(runs, *, token=None, limits=None, watch=False, wait=True, **options):
    """Serve in a thread; yield a client that also has the service."""
    given = {"patience": 1.0, "stop_seconds": 10.0, **(limits or {})}
    service = Service(runs, limits=Limits(**given), **{"cache": False, **options})
    app = create_app(service, token=token, watch=watch)
    listening = listen("127.0.0.1", 0)
    server = Server(app, service.limits, hangup=service.reload)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    client = Client(listening.getsockname()[1], token)
    client.service, client.server, client.thread = service, server, thread
    deadline = time.monotonic() + 60
    while wait and not service.ready:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield client
    finally:
        if thread.is_alive():
            server.handle_exit(15, None)
            thread.join(30)
        listening.close()
        assert not thread.is_alive()

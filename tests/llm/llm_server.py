"""A local server for both protocols with scripted, good or bad replies."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Act:
    """The response to one request; `raw`, bytes or an iterator of them, replaces a proper reply."""

    text: str | None = "A fine sentence."
    status: int = 200
    headers: dict = field(default_factory=dict)
    delay: float = 0.0
    raw: bytes | Iterator[bytes] | None = None
    finish: str = "stop"
    usage: tuple[int, int] | None = (11, 7)


class Server:
    """`script(question, time)` returns the response to a question's first, second … request."""

    def __init__(self, script):
        self.script = script
        self.requests = []  # (path, body) of each
        self.headers = []
        self.times = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._seen = Counter()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def root(self):
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def url(self):
        return f"{self.root}/v1"

    @property
    def questions(self):
        return [_question(body) for _, body in self.requests]

    def _begin(self, path, body, headers):
        question = _question(body)
        with self._lock:
            self.requests.append((path, body))
            self.headers.append(headers)
            self.times.append(time.monotonic())
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self._seen[question] += 1
            number = self._seen[question]
        return self.script(question, number)

    def _end(self):
        with self._lock:
            self._at_once -= 1

    def _handler(server):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                length = int(self.headers["content-length"])
                body = json.loads(self.rfile.read(length))
                act = server._begin(self.path, body, dict(self.headers))
                try:
                    time.sleep(act.delay)
                finally:
                    server._end()
                content = act.raw if act.raw is not None else _reply(self.path, act)
                try:
                    self.send_response(act.status)
                    for name, value in {"content-type": "application/json", **act.headers}.items():
                        self.send_header(name, value)
                    if isinstance(content, bytes):
                        self.send_header("content-length", str(len(content)))
                        content = [content]
                    else:
                        self.send_header("connection", "close")
                    self.end_headers()
                    self.wfile.writelines(content)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client did not wait

        return Handler


def _question(body):
    content = body["messages"][0]["content"]
    return content if isinstance(content, str) else content[-1]["text"]


def _reply(path, act):
    if act.status != 200:
        return json.dumps({"error": {"type": "x", "message": "not now"}}).encode()
    messages = path == "/v1/messages"
    assert messages or path == "/v1/chat/completions", path
    usage = None
    if act.usage is not None:
        names = ("input_tokens", "output_tokens")
        names = names if messages else ("prompt_tokens", "completion_tokens")
        usage = dict(zip(names, act.usage, strict=True))
    if messages:
        return json.dumps(
            {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [{"type": "text", "text": act.text}] if act.text is not None else [],
                "stop_reason": "max_tokens" if act.finish == "length" else "end_turn",
                "usage": usage,
            }
        ).encode()
    message = {"role": "assistant", "content": act.text}
    choice = {"index": 0, "message": message, "finish_reason": act.finish}
    return json.dumps(
        {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}
    ).encode()

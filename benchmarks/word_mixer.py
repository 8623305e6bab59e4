"""A stand-in for a language model, for LLMbo where there is none. This is NOT a language model.

It speaks OpenAI's protocol, and shuffles words: it takes the templates in the first list of a message,
the good ones, and puts parts of two of them together. It understands nothing and knows no words but
those it is shown. What LLMbo reaches with it is what blind recombination reaches, and no more; figures
made with it must say so.

    python -m benchmarks.word_mixer --port 8123 --seed 0
    promptboost compare … --methods "llmbo?model=word-mixer&base_url=http://127.0.0.1:8123/v1"

The same seed, message and number of the time it was sent always give the same reply.
"""

import argparse
import hashlib
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "word-mixer"

_COUNT = re.compile(r"\bwrite (\d+) new\b")
_MOST_WORDS = 14
_TRIES = 50  # to find something that the message does not have


class WordMixer:
    """Makes new templates out of the words of good ones.

    Parameters
    ----------
    seed : int, default=0
        Another seed mixes otherwise.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reply(self, message: str) -> str:
        """Answer a message: as many templates as it asks for, each behind a dash."""
        good = first_list(message)
        if not good:
            return "There is no list of templates in this message."
        with self._lock:
            self._times[message] += 1
            time = self._times[message]
        digest = hashlib.blake2b(f"{self._seed}/{time}/{message}".encode(), digest_size=8)
        rng = random.Random(digest.digest())
        asked = _COUNT.search(message)
        count = min(int(asked.group(1)), 100) if asked else 1
        said = message.splitlines()
        for _ in range(count):
            tries = (f"- {mixed(good, rng)}" for _ in range(_TRIES))
            said.append(next((line for line in tries if line not in said), f"- {good[0]}"))
        return "\n".join(said[-count:])


def first_list(message: str) -> list[str]:
    r"""Return the first run of lines with a dash before them.

    >>> first_list("Good:\n- a {}.\n- one {}.\n\nBad:\n- the {}.")
    ['a {}.', 'one {}.']
    """
    found: list[str] = []
    for line in message.splitlines():
        if line.startswith("- "):
            found.append(line[2:])
        elif found:
            break
    return [line for line in found if line.count("{}") == 1]


def mixed(good: list[str], rng: random.Random) -> str:
    """Put the beginning of one template before the end of another; now and then borrow a word."""
    before = rng.choice(good).split("{}")[0].split()
    end = rng.choice(good).split("{}")[1]
    words = [
        word.strip(".,") for one in good for word in one.split() if word.isalpha() and len(word) > 3
    ]
    new = [word for word in words if word not in before]
    if new and rng.random() < 0.5:
        before.insert(min(1, len(before)), rng.choice(new))
    room = _MOST_WORDS - len(end.split())
    return " ".join([*before[: max(room, 0)], "{}"]) + end


@contextmanager
def serving(seed: int = 0, port: int = 0) -> Iterator[str]:
    """Serve in the background; gives the base URL."""
    with _server(seed, port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def _server(seed: int, port: int) -> ThreadingHTTPServer:
    mixer = WordMixer(seed)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing about each request."""

        def do_POST(self) -> None:
            """Answer a chat completion."""
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                asked = str(json.loads(content)["messages"][-1]["content"])
            except (ValueError, KeyError, IndexError, TypeError):
                self._send(400, {"error": {"type": "invalid", "message": "no messages in it"}})
                return
            if self.path != "/v1/chat/completions":
                self._send(404, {"error": {"type": "unknown", "message": f"no {self.path} here"}})
                return
            self._send(200, _completion(asked, mixer.reply(asked)))

        def _send(self, status: int, record: dict[str, Any]) -> None:
            content = json.dumps(record).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server


def _completion(asked: str, reply: str) -> dict[str, Any]:
    words = len(asked.split()), len(reply.split())
    message = {"role": "assistant", "content": reply}
    return {
        "id": MODEL,
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": words[0],
            "completion_tokens": words[1],
            "total_tokens": sum(words),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with _server(options.seed, options.port) as server:
        print(f"mixing words at http://127.0.0.1:{server.server_port}/v1 (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")


if __name__ == "__main__":
    main()

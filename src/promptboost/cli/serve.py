"""``promptboost serve``."""

import os
import re
from pathlib import Path

import click

from promptboost.cli.options import allow_download_option, embeds
from promptboost.cli.output import Output, speaks

_TOKEN_VARIABLE = "PROMPTBOOST_TOKEN"
_SHORTEST_TOKEN = 16
_EXAMPLES = """
\b
promptboost serve run
promptboost serve pets=runs/pets flowers=runs/flowers --port 9000
PROMPTBOOST_TOKEN=... promptboost serve run --host 0.0.0.0
"""


@click.command(name="serve", epilog=_EXAMPLES)
@click.argument("runs", nargs=-1, required=True, metavar="[NAME=]RUN...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 takes a free one.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the token that clients have to show. Default: $PROMPTBOOST_TOKEN. Without one, "
    "only this machine is served.",
)
@click.option("--reload", is_flag=True, help="Load a run again when its files change.")
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Images that go through the encoder at once.",
)
@click.option(
    "--max-wait-ms",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="How long a batch waits for images that are on their way.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Images that may wait; more are refused with status 429.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    default=32 * 2**20,
    show_default=True,
    help="Bytes in one request; more are refused with status 413.",
)
@click.option("--encoder", help="See with another encoder than the runs were fitted on.")
@click.option("--text-only", is_flag=True, help="Answer by the words alone, without the residual.")
@allow_download_option
@embeds
@speaks
def serve(
    out: Output,
    runs: tuple[str, ...],
    host: str,
    port: int,
    token_file: Path | None,
    reload: bool,
    max_batch: int,
    max_wait_ms: float,
    max_queue: int,
    max_bytes: int,
    encoder: str | None,
    text_only: bool,
    allow_download: bool,
    no_cache: bool,
    device: str | None,
) -> None:
    """Answer over HTTP.

    RUN is a run folder, or NAME=RUN to serve it under another name. The first run answers at /predict,
    each at /runs/NAME/predict; /openapi.json describes all addresses. SIGHUP loads changed runs again,
    SIGTERM stops after the requests in hand.
    """
    from promptboost.encoders.runtime import require_modules

    needed = ("fastapi", "uvicorn", "httptools", "python_multipart", "prometheus_client")
    require_modules(needed, "serve", "Servers")
    from promptboost.serve.limits import Limits
    from promptboost.serve.server import serve as run_server
    from promptboost.serve.service import Service, named_runs

    limits = Limits(
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        max_queue=max_queue,
        max_bytes=max_bytes,
        max_held=max(Limits.max_held, 2 * max_bytes),
    )
    token = _read_token(token_file)
    service = Service(
        named_runs(runs),
        limits=limits,
        encoder=encoder,
        text_only=text_only,
        cache=not no_cache,
        device=device,
        allow_download=allow_download,
    )

    def started(address: str) -> None:
        text = _greeting(list(service.runs), address, token is not None)
        out.result({"address": address, "runs": list(service.runs)}, text)

    run_server(service, host=host, port=port, token=token, watch=reload, started=started)
    out.note("stopped")


def _read_token(file: Path | None) -> str | None:
    """Return the token from a file, else from the environment; None without one."""
    from promptboost.errors import SettingError, place
    from promptboost.io import read_text

    if file is not None:
        source, token = place(file), read_text(file, error=SettingError).strip()
    elif _TOKEN_VARIABLE in os.environ:
        source, token = _TOKEN_VARIABLE, os.environ[_TOKEN_VARIABLE].strip()
    else:
        return None
    if not re.fullmatch(rf"[!-~]{{{_SHORTEST_TOKEN},}}", token):
        raise SettingError(
            f"{source} holds no token: it must be {_SHORTEST_TOKEN} letters and digits or more. To make "
            "one, type: openssl rand -hex 32"
        )
    return token


def _greeting(runs: list[str], address: str, has_token: bool) -> str:
    """Return the address of a server, and commands to paste."""
    header = f' -H "Authorization: Bearer ${_TOKEN_VARIABLE}"' if has_token else ""
    lines = [f"serving {', '.join(runs)} on {address}", "", "Ask it:"]
    lines.append(f"  curl{header} -F image=@photo.jpg {address}/predict")
    lines += [
        f"  curl{header} -F image=@photo.jpg {address}/runs/{run}/predict" for run in runs[1:4]
    ]
    lines.append(f"  curl{header} {address}/runs/{runs[0]}/sentences")
    return "\n".join([*lines, "", "Ctrl-C stops it, after the requests in hand."])

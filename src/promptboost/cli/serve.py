"""``promptboost serve``."""

import os
import re
from pathlib import Path
from typing import Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import Output, with_output

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
@opt.default_option("--port", click.IntRange(0, 65535), 8000, "Port; 0 takes a free one.")
@click.option(
    "--token-file",
    type=opt.FILE,
    help="A file with the token that clients must send. Default: $PROMPTBOOST_TOKEN. Without a token, "
    "only this machine is served.",
)
@click.option("--reload", is_flag=True, help="Reload a run when its files change.")
@opt.default_option("--max-batch", opt.COUNT, 32, "Maximum number of images per encoder batch.")
@opt.default_option(
    "--max-wait-ms", click.FloatRange(min=0), 5.0, "Time to wait for a batch to fill."
)
@opt.default_option(
    "--max-queue", opt.COUNT, 256, "Maximum number of waiting images; more get status 429."
)
@opt.default_option(
    "--max-bytes", opt.COUNT, 32 * 2**20, "Maximum size of a request; larger ones get status 413."
)
@opt.other_encoder_options
@opt.opening_options
@with_output
def serve(
    out: Output,
    runs: tuple[str, ...],
    host: str,
    port: int,
    token_file: Path | None,
    reload: bool,
    encoder: str | None,
    text_only: bool,
    opening: dict[str, Any],
    **limits: Any,
) -> None:
    """Serve predictions over HTTP.

    RUN is a run folder, or NAME=RUN to serve it under another name. /predict uses the first run,
    /runs/NAME/predict a given one; /openapi.json describes all endpoints. SIGHUP reloads changed runs,
    SIGTERM stops after the running requests.
    """
    from promptboost.encoders.runtime import require_modules

    needed = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
    require_modules(needed, "serve", "Servers")
    from promptboost.serve.limits import Limits
    from promptboost.serve.server import serve as run_server
    from promptboost.serve.service import Service, named_runs

    max_held = max(Limits.max_held, 2 * limits["max_bytes"])
    token = _read_token(token_file)
    del opening["progress"]
    service = Service(
        named_runs(runs),
        limits=Limits(**limits, max_held=max_held),
        encoder=encoder,
        text_only=text_only,
        **opening,
    )

    def started(address: str) -> None:
        text = _greeting(list(service.runs), address, token is not None)
        out.result({"address": address, "runs": list(service.runs)}, text)

    run_server(service, host=host, port=port, token=token, watch=reload, started=started)
    out.note("stopped")


def _read_token(file: Path | None) -> str | None:
    """Return the token from the file or the environment, or None."""
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
            f"{source} contains no token of at least {_SHORTEST_TOKEN} letters and digits; to create one, "
            "type: openssl rand -hex 32"
        )
    return token


def _greeting(runs: list[str], address: str, has_token: bool) -> str:
    """Format the address of the server and commands to try."""
    header = f' -H "Authorization: Bearer ${_TOKEN_VARIABLE}"' if has_token else ""
    lines = [f"serving {', '.join(runs)} on {address}", "", "Try it:"]
    lines.append(f"  curl{header} -F image=@photo.jpg {address}/runs/{runs[0]}/predict")
    lines.append(f"  curl{header} {address}/runs/{runs[0]}/sentences")
    return "\n".join([*lines, "", "Ctrl-C stops it after the running requests."])

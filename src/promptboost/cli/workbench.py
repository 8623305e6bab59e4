"""``promptboost workbench``."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli.options import allow_download_option, embeds, run_argument
from promptboost.cli.output import Output, plain, speaks

_EXAMPLES = """
\b
promptboost workbench run
promptboost workbench run --model NAME --base-url http://localhost:8000/v1
"""


@click.command(name="workbench", epilog=_EXAMPLES)
@run_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port on this machine; 0 takes a free one.",
)
@click.option("--open", "browse", is_flag=True, help="Also open the page in the browser.")
@click.option("--data", help="Where the images of the fit are now, if they were moved.")
@click.option("--model", help="Name of a language model that suggests sentences.")
@click.option("--base-url", help="URL of its server, such as http://localhost:8000/v1.")
@click.option(
    "--provider",
    type=click.Choice(["openai", "anthropic"]),
    default="openai",
    show_default=True,
    help="Protocol of its server; most speak OpenAI's.",
)
@allow_download_option
@embeds
@speaks
def workbench(
    out: Output,
    run: Path,
    port: int,
    browse: bool,
    data: str | None,
    model: str | None,
    base_url: str | None,
    provider: Any,
    opening: dict[str, Any],
) -> None:
    """Edit a run in the browser, with the effect of each edit.

    The page is served to this machine alone, at the printed address. Figures are those of the held-out
    images, without the part that is kept back for evaluate --held-out --final. The run stays as it is: a
    version is saved as a new run next to it. Unsaved edits come back the next time.
    """
    from promptboost.encoders.runtime import require_modules
    from promptboost.errors import SettingError

    needed = ("fastapi", "uvicorn", "httptools", "prometheus_client")
    require_modules(needed, "serve", "Workbenches")
    from promptboost.llm.client import ModelSettings
    from promptboost.report import write_card, write_report
    from promptboost.run.holdout import open_held_out
    from promptboost.workbench.application import serve_workbench
    from promptboost.workbench.state import Workbench, draft_folder, only_editor

    if base_url and not model:
        raise SettingError("--base-url is the server of a language model: add --model NAME")
    settings = None if model is None else ModelSettings(model, provider, base_url)
    held_out = open_held_out(run, data=data, **opening)
    options = {name: value for name, value in opening.items() if name != "progress"}
    with only_editor(draft_folder(run, held_out.ensemble.fingerprint)):
        opened = Workbench(
            run, held_out, model=settings, finish=(write_report, write_card), options=options
        )

        def started(address: str) -> None:
            lines = [f"workbench of {plain(str(run))} on {address}"]
            if opened.restored:
                lines.append(f"unsaved edits that came back: {len(opened.draft.changes)}")
            lines.append("Ctrl-C stops it; unsaved edits are kept.")
            record = {"address": address, "unsaved": len(opened.draft.changes)}
            out.result(record, "\n".join(lines))
            if browse:
                click.launch(address)

        serve_workbench(opened, port=port, started=started)
    out.note("stopped")

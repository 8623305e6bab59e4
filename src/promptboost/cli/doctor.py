"""``promptboost doctor``."""

from dataclasses import asdict

import click

from promptboost.cli.failure import UNUSABLE
from promptboost.cli.output import Output, plain, speaks
from promptboost.config import DEFAULT_ENCODER

_MARKS = {True: "ok     ", None: "absent ", False: "FAULT  "}


@click.command(name="doctor")
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, help="Encoder to try.")
@speaks
def command(out: Output, encoder: str) -> int:
    """Look at what is installed, on which device, whether an encoder loads, and the store.

    The exit code is 2 if there is a fault.
    """
    from promptboost.runs.doctor import examine

    diagnoses = []
    for one in examine(encoder):
        diagnoses.append(one)
        if not out.json:
            click.echo(f"{_MARKS[one.ok]} {one.name}: {plain(one.detail)}")
    faults = [one for one in diagnoses if one.ok is False]
    if out.json:
        out.result({"ok": not faults, "findings": [asdict(one) for one in diagnoses]}, "")
    return UNUSABLE if faults else 0

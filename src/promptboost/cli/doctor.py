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

    findings = []
    for finding in examine(encoder):
        findings.append(finding)
        if not out.json:
            click.echo(f"{_MARKS[finding.ok]} {finding.name}: {plain(finding.detail)}")
    faults = [finding for finding in findings if finding.ok is False]
    if out.json:
        out.result({"ok": not faults, "findings": [asdict(finding) for finding in findings]}, "")
    return UNUSABLE if faults else 0

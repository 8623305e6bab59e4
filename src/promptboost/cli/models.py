"""``promptboost models``."""

from dataclasses import asdict

import click

from promptboost.cli.output import Output, speaks, table


@click.command(name="models")
@speaks
def command(out: Output) -> None:
    """List encoders and the name to type for each.

    Other models of open_clip work too, spelled architecture/weights; so do hf-hub:organisation/model
    and architecture@checkpoint-file. Encoders of other packages are spelled prefix:name, or
    package.module:Class.
    """
    from promptboost.encoders.registry import MODELS

    heads = ["type this", "family", "model", "dimension", "pixels", "tokens", "megabytes", "note"]

    def text() -> str:
        rows = [
            [
                *(record.name, record.family, record.title, str(record.dim)),
                *(str(record.resolution), str(record.context_length), str(record.size)),
                record.note,
            ]
            for record in MODELS
        ]
        return table(heads, rows, left=(0, 1, 2, 7))

    out.result({"models": [{**asdict(record), "size": record.size} for record in MODELS]}, text)

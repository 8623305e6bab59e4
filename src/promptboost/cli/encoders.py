"""``promptboost models``, ``embed``, ``cache`` and ``doctor``: encoders and embeddings."""

from dataclasses import asdict
from typing import Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import UNUSABLE, Output, echo, plain, table, with_output
from promptboost.config import MOST_CROPS, FitConfig

_MARKS = {True: "ok     ", None: "absent ", False: "FAULT  "}


@click.command(name="models")
@with_output
def models(out: Output) -> None:
    """List encoders by name.

    Other models of open_clip are named architecture/weights, hf-hub:organization/model or
    architecture@checkpoint-file; models of transformers hf:organization/model, of sentence-transformers
    st:organization/model, ONNX towers onnx:organization/model, each also with a folder; encoders of other
    packages prefix:name or package.module:Class.
    """
    from promptboost.encoders.registry import MODELS

    notes = list(dict.fromkeys(record.note for record in MODELS if record.note))
    rows = [
        [
            *(record.name, str(record.dim), str(record.resolution)),
            *(str(record.context_length), str(record.size)),
            str(notes.index(record.note) + 1) if record.note else "",
        ]
        for record in MODELS
    ]
    text = table(["name", "dim", "pixels", "tokens", "MB", "note"], rows)
    footnotes = [f"{number}  {note}" for number, note in enumerate(notes, start=1)]
    records = [{**asdict(record), "size": record.size} for record in MODELS]
    out.result({"models": records}, "\n".join([text, "", *footnotes]))


@click.command(name="embed")
@click.argument("data", required=False, type=click.Path())
@click.option(
    "--texts",
    type=click.Path(),
    metavar="FILE",
    help="Also embed texts: a .txt file with one text per line, or a file for fit --prompts, for the "
    "classes of DATA or of the file.",
)
@click.option(
    "--classes",
    metavar="DATA",
    help="Other images that define the classes of --texts, as for fit, or a file of names.",
)
@opt.default_option(
    *("--views", click.IntRange(min=0), 0),
    f"Crops of each image; fit uses up to {MOST_CROPS} of each training image.",
)
@opt.encoder_option("Encoder to embed with.")
@opt.config_options(("templates", "concatenate"))
@opt.shard_options
@opt.device_options
@with_output
def embed(
    out: Output,
    data: str | None,
    texts: str | None,
    classes: str | None,
    views: int,
    encoder: str | None,
    device: str | None,
    **options: Any,
) -> None:
    """Embed images, texts or both ahead of time, for later commands.

    DATA is as for fit. With --on ray, --shard or --storage it may also be a Parquet file, a tar, a folder
    of those, or a URL: the work is then done in shards of one file each, and the same command resumes it.
    """
    from promptboost.cli.generate import class_names_of
    from promptboost.distributed.embed import embed_data, embedded

    placement = opt.placement(options)
    settings = {name: value for name, value in options.items() if value is not None}
    with opt.resumable_shards(placement):
        record = embed_data(
            data,
            encoder or opt.default_encoder(out),
            texts=texts,
            settings=FitConfig().merged(settings),
            views=views,
            progress=out.progress,
            device=device,
            placement=placement,
            class_names=None if classes is None else tuple(class_names_of(classes)),
            say=out.note,
        )
    out.note_bad_images(record.get("bad_images", ()))
    out.result(record, lambda: embedded(record))


@click.command(name="cache")
@click.argument("action", type=click.Choice(["show", "clear"]), default="show")
@with_output
def cache(out: Output, action: str) -> None:
    """Show or clear the embedding store.

    Cleared and damaged embeddings are computed again when they are needed.
    """
    from promptboost.encoders.store import EmbeddingStore
    from promptboost.errors import human_bytes

    store = EmbeddingStore()
    if action == "clear":
        freed = store.clear()
        out.result({"freed_bytes": freed}, f"{human_bytes(freed)} freed")
        return
    report = store.report()
    out.result(report.to_dict(), str(report))


@click.command(name="doctor")
@opt.encoder_option("Encoder to check.")
@with_output
def doctor(out: Output, encoder: str | None) -> int:
    """Check the installation, the device, an encoder and the embedding store.

    The exit code is 2 if a check fails.
    """
    from promptboost.run.doctor import examine

    diagnoses = []
    for diagnosis in examine(encoder or opt.default_encoder(out), out.progress):
        diagnoses.append(diagnosis)
        if not out.json:
            echo(f"{_MARKS[diagnosis.ok]} {diagnosis.name}: {plain(diagnosis.detail)}")
    ok = all(diagnosis.ok is not False for diagnosis in diagnoses)
    if out.json:
        out.result({"ok": ok, "findings": diagnoses}, "")
    return 0 if ok else UNUSABLE

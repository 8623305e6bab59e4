"""``promptboost models``, ``embed``, ``cache`` and ``doctor``: encoders, vectors, and what works."""

from dataclasses import asdict
from shutil import get_terminal_size
from typing import Any

import click

from promptboost.cli.options import (
    config_options,
    default_encoder,
    device_option,
    encoder_option,
    image_sources,
    placement,
    shard_options,
    shards_are_kept,
    threads_option,
    with_options,
)
from promptboost.cli.output import UNUSABLE, Output, echo, on_terminal, plain, speaks, table
from promptboost.config import FitConfig

_MARKS = {True: "ok     ", None: "absent ", False: "FAULT  "}


@click.command(name="models")
@speaks
def models(out: Output) -> None:
    """List encoders and the name to type for each.

    Other models of open_clip work too, spelled architecture/weights; so do hf-hub:organization/model
    and architecture@checkpoint-file. Encoders of other packages are spelled prefix:name, or
    package.module:Class.
    """
    from promptboost.encoders.registry import MODELS

    notes = list(dict.fromkeys(record.note for record in MODELS if record.note))

    def text() -> str:
        rows = [
            [
                *(record.name, record.family, str(record.dim), str(record.resolution)),
                *(str(record.context_length), str(record.size)),
                str(notes.index(record.note) + 1) if record.note else "",
            ]
            for record in MODELS
        ]
        heads = ["type this", "family", "dim", "pixels", "tokens", "MB", "note"]
        shown = table(heads, rows, left=(0, 1))
        if on_terminal() and get_terminal_size().columns < max(map(len, shown.splitlines())):
            # What is typed names the family, too.
            shown = table(heads[:1] + heads[2:], [row[:1] + row[2:] for row in rows])
        below = [f"{number}  {note}" for number, note in enumerate(notes, start=1)]
        return "\n".join([shown, "", *below])

    out.result({"models": [{**asdict(record), "size": record.size} for record in MODELS]}, text)


#: What says how to embed: for ``embed`` and ``pool embed``.
embeds = with_options(
    [
        encoder_option("Model to embed with."),
        config_options(("templates", "concatenate")),
        shard_options,
        device_option,
        threads_option,
    ]
)


@click.command(name="embed")
@click.argument("data", required=False, shell_complete=image_sources)
@click.option(
    "--texts",
    type=click.Path(),
    metavar="FILE",
    help="Embed texts as well, or alone: a .txt file with one text a line, or what fit --prompts reads; "
    "of that all that a fit embeds, for the classes of DATA or else of the file.",
)
@click.option(
    "--views",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help=f"Crops of each image; fit uses {FitConfig().views} of those it learns from.",
)
@embeds
@speaks
def embed(
    out: Output,
    data: str | None,
    texts: str | None,
    encoder: str | None,
    views: int,
    device: str | None,
    **options: Any,
) -> None:
    """Embed images, texts or both ahead of time, so that later commands find them in the store.

    DATA is as for fit. With --on ray, --shard or --storage it may also be a Parquet file, a tar, a folder
    of those, or a URL: the work is then done in shards, of which each is one file, and an interrupted
    command goes on where it was.
    """
    embed_for_command(out, data, encoder, texts=texts, views=views, device=device, options=options)


def embed_for_command(
    out: Output,
    data: str | None,
    encoder: str | None,
    *,
    texts: str | None,
    device: str | None,
    options: dict[str, Any],
    views: int = 0,
    classes: str | None = None,
) -> None:
    """Embed, and show what became of it: for ``embed`` and ``pool embed``."""
    from promptboost.cli.generate import class_names_of
    from promptboost.distributed.embed import embed_data, embedded

    place = placement(options)
    asked = {name: value for name, value in options.items() if value is not None}
    with shards_are_kept(place):
        record = embed_data(
            data,
            encoder or default_encoder(out),
            texts=texts,
            settings=FitConfig().merged(asked),
            views=views,
            progress=out.progress,
            device=device,
            place=place,
            class_names=None if classes is None else tuple(class_names_of(classes)),
            say=out.note,
        )
    for bad in record.get("bad_images", ()):
        out.note(f"left out {bad['path']}: {bad['reason']}")
    out.result(record, lambda: embedded(record))


@click.command(name="cache")
@click.argument("action", type=click.Choice(["show", "clear"]), default="show")
@click.option("--verify", is_flag=True, help="Check every byte; damaged files are set aside.")
@click.option("--fingerprint", help="Clear the vectors of one encoder only.")
@speaks
def cache(out: Output, action: str, verify: bool, fingerprint: str | None) -> int:
    """Show, check or clear the embedding store.

    It only saves time: whatever is cleared is computed again when it is needed.
    """
    from promptboost.encoders.store import EmbeddingStore
    from promptboost.errors import SettingError, human_bytes

    store = EmbeddingStore()
    if action == "clear":
        if verify:
            raise SettingError("--verify goes with show, not with clear")
        known = {share.fingerprint: share.name for share in store.report().encoders}
        if fingerprint is not None and fingerprint not in known:
            stored = ", ".join(f"{key} ({name})" if name else key for key, name in known.items())
            raise SettingError(
                f"nothing is stored for the fingerprint {fingerprint!r}; there is {stored or 'none'}"
            )
        freed = store.clear(fingerprint)
        out.result({"freed_bytes": freed}, f"{human_bytes(freed)} freed")
        return 0
    checked = store.verify(progress=out.progress) if verify else None
    report = store.report()
    record = {**report.to_dict(), "verification": asdict(checked) if checked else None}
    out.result(record, "\n".join(map(str, [report, checked] if checked else [report])))
    return UNUSABLE if checked is not None and not checked.ok else 0


@click.command(name="doctor")
@encoder_option("Encoder to try.")
@speaks
def doctor(out: Output, encoder: str | None) -> int:
    """Look at what is installed, on which device, whether an encoder loads, and the store.

    The exit code is 2 if there is a fault.
    """
    from promptboost.progress import stage
    from promptboost.run.doctor import examine

    diagnoses = []
    for name, look in examine(encoder or default_encoder(out)).items():
        with stage(out.progress, f"checking: {name}"):
            one = look()
        diagnoses.append(one)
        if not out.json:
            echo(f"{_MARKS[one.ok]} {one.name}: {plain(one.detail)}")
    faults = [one for one in diagnoses if one.ok is False]
    if out.json:
        out.result({"ok": not faults, "findings": [asdict(one) for one in diagnoses]}, "")
    return UNUSABLE if faults else 0

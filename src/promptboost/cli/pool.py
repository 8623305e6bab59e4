"""``promptboost pool``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptboost.cli.output import Command, Output, plain, speaks
from promptboost.cli.pool_generate import generate, grow

if TYPE_CHECKING:
    from promptboost.pool.meeting import Meeting

_EXAMPLES = """
\b
promptboost pool check pets_prompts_full.json --classes my-pictures
promptboost pool build cupl.json descriptors_pets.json --classes my-pictures -o sentences.json
promptboost fit my-pictures -o run --prompts sentences.json
"""


@click.group(name="pool", epilog=_EXAMPLES, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Check, join and read files of sentences about classes.

    Files are read as their authors released them: CuPL, DCLIP, GPT4Vis, AdaptCLIPZS, AWT, ProAPO,
    CLIP_benchmark, or your own JSON, JSONL, CSV (class,sentence) or text (class, tab, sentence).
    Its commands take --json and --quiet.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _reads(function: Command) -> Command:
    options = [
        click.option("--kind", help="Format of the sources. Default: recognised."),
        click.option("--dataset", help="Which dataset of a file that holds several."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _meets(function: Command) -> Command:
    options = [
        click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path)),
        click.option(
            "--classes",
            required=True,
            help="The classes: pictures as for fit, or a file of names (a line each, or JSON).",
        ),
        click.option(
            "--synonyms",
            type=click.Path(path_type=Path),
            help='Other names of classes: {"class": ["other name", …], …} in a JSON file.',
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return _reads(function)


@command.command(name="check", short_help="Say how names meet classes, and what is odd.")
@_meets
@click.option("--encoder", help="Also look for sentences longer than this model reads.")
@speaks
def check(
    out: Output,
    sources: tuple[Path, ...],
    classes: str,
    synonyms: Path | None,
    kind: str | None,
    dataset: str | None,
    encoder: str | None,
) -> None:
    """Say how the names in SOURCES meet the classes, and what is odd about the sentences."""
    from promptboost.cli import pool_words as words
    from promptboost.pool.checking import check_meeting

    names, meetings = _meetings(sources, classes, synonyms, kind, dataset)
    model = None
    if encoder is not None:
        from promptboost.encoders import load_encoder

        model = load_encoder(encoder)
    found = [(meeting, check_meeting(meeting, names, model)) for meeting in meetings]
    out.result(words.check_record(names, found), lambda: words.check_text(names, found))


@command.command(name="build", short_help="Join sources into one file for fit --prompts.")
@_meets
@click.option(
    "-o", "--output", "file", required=True, type=click.Path(path_type=Path), metavar="FILE.json"
)
@speaks
def build(
    out: Output,
    sources: tuple[Path, ...],
    classes: str,
    synonyms: Path | None,
    kind: str | None,
    dataset: str | None,
    file: Path,
) -> None:
    """Join SOURCES into one file of sentences by class, for fit --prompts.

    The names in it are those of the classes; blank, damaged and repeated sentences are left out.
    """
    import json

    from promptboost.cli import pool_words as words
    from promptboost.files import write_text
    from promptboost.pool.meeting import join

    names, meetings = _meetings(sources, classes, synonyms, kind, dataset)
    joined = join(meetings, names)
    write_text(file, json.dumps(joined, ensure_ascii=False, indent=1) + "\n")
    record = words.build_record(file, names, meetings, joined)
    if without := record["without_sentences"]:
        out.note(f"{len(without)} of {len(names)} classes have no sentence: {words.few(without)}")
    out.result(record, lambda: words.build_text(record))


@command.command(name="show", short_help="List the names in a file, or read one class.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--class", "class_name", help="Read the sentences of this class.")
@_reads
@speaks
def show(
    out: Output, file: Path, class_name: str | None, kind: str | None, dataset: str | None
) -> None:
    """List the names in FILE and count their sentences, or read those of one class."""
    from promptboost.cli import pool_words as words
    from promptboost.pool.meeting import sentences_of
    from promptboost.pool.readers import read_sources

    found = read_sources(file, kind, dataset=dataset)
    if class_name is None:
        out.result(words.show_record(found), lambda: words.show_text(found))
        return
    texts = sentences_of(found, class_name)
    lines = [plain(text) for own in texts.values() for text in own]
    out.result({"class": class_name, "sentences": texts}, "\n".join(lines))


def _meetings(
    sources: tuple[Path, ...],
    classes: str,
    synonyms: Path | None,
    kind: str | None,
    dataset: str | None,
) -> tuple[tuple[str, ...], list["Meeting"]]:
    from promptboost.pool.aliases import read_synonyms
    from promptboost.pool.classes import read_class_names
    from promptboost.pool.meeting import meet
    from promptboost.pool.readers import read_sources

    names = read_class_names(classes)
    if names is None:
        from promptboost.data import load_data

        names = load_data(classes, check=False, progress=False).class_names
    others = read_synonyms(synonyms) if synonyms else None
    read = [source for path in sources for source in read_sources(path, kind, dataset=dataset)]
    return names, [meet(source, names, others) for source in read]


for _asking in (generate, grow):
    command.add_command(_asking)

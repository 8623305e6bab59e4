"""``promptboost pool``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from promptboost.cli.encoders import embed_for_command, embeds
from promptboost.cli.generate import class_names_of, generate, grow
from promptboost.cli.options import with_options
from promptboost.cli.output import Output, echo, plain, speaks
from promptboost.errors import SettingError, few

if TYPE_CHECKING:
    from promptboost.pool.pool import Concatenate
    from promptboost.pool.sources import ClassMatch


class SourcePlace(NamedTuple):
    """A file or folder of sentences, and the format it is said to have."""

    path: Path
    kind: str | None


class _SourcePlaceType(click.ParamType[SourcePlace]):
    name = "[KIND=]PATH"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> SourcePlace:
        """Take ``kind=path`` apart, unless there is a file of that very name."""
        from promptboost.pool.readers import kinds

        text = str(value)
        kind, equals, path = text.partition("=")
        if equals and kind in kinds() and not Path(text).exists():
            return SourcePlace(Path(path), kind)
        return SourcePlace(Path(text), None)


#: The options about the format of what is read.
reads = with_options(
    [
        click.option("--kind", help="Format of the sources without KIND=. Default: recognized."),
        click.option("--dataset", help="Which dataset of a file that holds several."),
    ]
)
#: Sources and classes.
meets = with_options(
    [
        click.argument(
            "places", nargs=-1, required=True, type=_SourcePlaceType(), metavar="[KIND=]SOURCES..."
        ),
        click.option(
            "--classes",
            required=True,
            help="The classes: images as for fit, or a file of names (a line each, or JSON).",
        ),
        click.option(
            "--synonyms",
            type=click.Path(path_type=Path),
            help='Other names of classes: {"class": ["other name", …], …} in a JSON file.',
        ),
        reads,
    ]
)


def matches_of(
    places: tuple[SourcePlace, ...],
    classes: str,
    synonyms: Path | None,
    kind: str | None,
    dataset: str | None,
) -> tuple[tuple[str, ...], list["ClassMatch"]]:
    """Read sources and classes, and match their names."""
    from promptboost.pool.names import read_synonyms
    from promptboost.pool.readers import read_sources
    from promptboost.pool.sources import match_classes

    names = tuple(class_names_of(classes))
    others = read_synonyms(synonyms) if synonyms else None
    read = (read_sources(place.path, place.kind or kind, dataset=dataset) for place in places)
    return names, [match_classes(source, names, others) for sources in read for source in sources]


_EXAMPLES = """
\b
promptboost pool check pets_prompts_full.json --classes my-images
promptboost pool build pets_prompts_full.json dclip=fragments.json --classes my-images -o pool.jsonl
promptboost fit my-images -o run --prompts pool.jsonl
"""
_BUILD_EXAMPLES = """
\b
promptboost pool build pets_prompts_full.json dclip=fragments.json --classes my-images -o pool.jsonl
promptboost pool build oxford_pets --classes my-images --sources cupl,dclip -o two.jsonl
promptboost pool build oxford_pets --classes my-images --concatenate all -o large.jsonl
promptboost fit my-images -o run --prompts pool.jsonl
"""


@click.group(name="pool", epilog=_EXAMPLES, invoke_without_command=True)
@click.pass_context
def pool(ctx: click.Context) -> None:
    """Check, join and read files of sentences about classes.

    Files are read as their authors released them: CuPL, DCLIP, GPT4Vis, AdaptCLIPZS, AWT, ProAPO,
    CLIP_benchmark, or your own JSON, JSONL, CSV (class,sentence) or text (class, tab, sentence); so
    are pools that build has saved. Its commands take --json and --quiet.
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


@pool.command(name="check", short_help="Show how names meet classes, and what is odd.")
@meets
@click.option("--encoder", help="Also look for sentences longer than this model reads.")
@speaks
def check(out: Output, encoder: str | None, **options: Any) -> None:
    """Show how the names in SOURCES meet the classes, and what is odd about the sentences."""
    from promptboost.cli import pool_text as words
    from promptboost.pool.lint import lint

    names, matches = matches_of(**options)
    model = None
    if encoder is not None:
        from promptboost.encoders import load_encoder

        model = load_encoder(encoder)
    checked = [(match, lint(match, names, model)) for match in matches]
    out.result(words.check_record(names, checked), lambda: words.check_text(names, checked))


@pool.command(
    name="build", short_help="Join sources into a pool for fit --prompts.", epilog=_BUILD_EXAMPLES
)
@meets
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="NAME.jsonl for a pool, NAME.json for sentences by class alone.",
)
@click.option(
    "--sources",
    metavar="NAME,NAME,…",
    help="Take these sources only, such as cupl,dclip. Default: all.",
)
@click.option(
    "--concatenate",
    type=click.Choice(["none", "one", "all"]),
    default="none",
    show_default=True,
    help="Also follow a template by each sentence: not at all, one template, or every one.",
)
@click.option(
    "--templates",
    type=click.Choice(["own", "clip"]),
    help="Whose 80 templates. Default: own, or those that a source holds.",
)
@speaks
def build(
    out: Output,
    file: Path,
    sources: str | None,
    concatenate: "Concatenate",
    templates: str | None,
    **options: Any,
) -> None:
    """Join SOURCES into one pool, for fit --prompts.

    A .jsonl file keeps everything: templates, sentences, concatenations, and where each prompt
    comes from. A .json file keeps the sentences of each class, which other programs read. The names
    in it are those of the classes; blank, damaged and repeated sentences are left out.
    """
    from promptboost.cli import pool_text as words
    from promptboost.io import write_json
    from promptboost.pool.sources import choose_sources, join_sentences

    as_pool = _is_for_a_pool(file, concatenate, templates)
    names, matches = matches_of(**options)
    if sources is not None:
        matches = choose_sources(matches, [name.strip() for name in sources.split(",")])
    # Templates of a source are the pool's own; a file of sentences has them filled.
    described = [match for match in matches if not (as_pool and match.source.templates)]
    joined = join_sentences(described, names) if described else {}
    record = words.build_record(file, names, described, joined)
    if as_pool:
        record |= _write_pool(file, names, matches, concatenate, templates)
    else:
        write_json(file, joined)
    if without := record["without_sentences"]:
        out.note(f"{len(without)} of {len(names)} classes have no sentence: {few(without)}")
    out.result(record, lambda: words.build_text(record))


def _is_for_a_pool(file: Path, concatenate: str, templates: str | None) -> bool:
    """Tell by its name what a file shall hold; raise if it cannot."""
    from promptboost.pool.io import keeps_everything

    if keeps_everything(file):
        return True
    if concatenate != "none" or templates is not None:
        option = "--templates" if concatenate == "none" else "--concatenate"
        raise SettingError(
            f"{option} makes prompts, and {file} would hold sentences alone; write a pool: "
            f"-o {file.with_suffix('.jsonl')}"
        )
    return False


def _write_pool(
    file: Path,
    names: tuple[str, ...],
    matches: list["ClassMatch"],
    concatenate: "Concatenate",
    templates: str | None,
) -> dict[str, Any]:
    from promptboost.pool import TEMPLATES, save_pool
    from promptboost.pool.sources import join_pool
    from promptboost.pool.templates import clip_templates

    shared = clip_templates() if templates == "clip" else TEMPLATES if templates else None
    pool = join_pool(matches, names, templates=shared, concatenate=concatenate)
    save_pool(pool, file)
    statistics = pool.statistics()
    return {name: statistics[name] for name in ("prompts", "prompts_by_source", "fingerprint")}


@pool.command(name="show", short_help="List the names in a file, or read one class.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--class", "class_name", help="Read the sentences of this class.")
@reads
@speaks
def show(
    out: Output, file: Path, class_name: str | None, kind: str | None, dataset: str | None
) -> None:
    """List the names in FILE and count their sentences, or read those of one class.

    Of a saved pool, all prompts count: filled templates and concatenations too.
    """
    from promptboost.cli import pool_text as words
    from promptboost.pool.io import is_saved_pool, load_pool
    from promptboost.pool.readers import read_sources
    from promptboost.pool.sources import sentences_about

    if kind is None and is_saved_pool(file):
        pool = load_pool(file)
        if class_name is None:
            out.result(words.pool_record(file, pool), lambda: words.pool_text(pool))
            return
        texts = words.prompts_by_source(pool, class_name)
    else:
        read = read_sources(file, kind, dataset=dataset)
        if class_name is None:
            out.result(words.show_record(read), lambda: words.show_text(read))
            return
        texts = sentences_about(read, class_name)
    lines = [plain(text) for listed in texts.values() for text in listed]
    out.result({"class": class_name, "sentences": texts}, "\n".join(lines))


@pool.command(name="embed", short_help="Embed all that a fit reads of a file.")
@click.argument("file", type=click.Path())
@click.option("--classes", "data", metavar="DATA", help="Images whose classes count, as for fit.")
@embeds
@speaks
def embed(
    out: Output,
    file: str,
    data: str | None,
    encoder: str | None,
    device: str | None,
    **options: Any,
) -> None:
    """Embed all that a fit reads of FILE ahead of time: sentences about classes, or a saved pool.

    The classes are those of FILE, or of DATA. With --on ray, --shard or --storage, in shards.
    """
    embed_for_command(out, None, encoder, texts=file, device=device, classes=data, options=options)


pool.add_command(generate)
pool.add_command(grow)

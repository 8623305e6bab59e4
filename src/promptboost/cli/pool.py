"""``promptboost pool``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from promptboost.cli import options as opt
from promptboost.cli.generate import class_names_of, generate, grow
from promptboost.cli.output import Output, echo, plain, with_output
from promptboost.errors import SettingError, few

if TYPE_CHECKING:
    from promptboost.pool.pool import Concatenate
    from promptboost.pool.sources import ClassMatch


class SourcePath(NamedTuple):
    """Path of a file or folder of sentences, and its format if it is given."""

    path: Path
    kind: str | None


class _SourcePathType(click.ParamType[SourcePath]):
    name = "[KIND=]PATH"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> SourcePath:
        """Split ``kind=path``, unless a file has that name."""
        from promptboost.pool.readers import KINDS

        text = str(value)
        kind, equals, path = text.partition("=")
        if equals and kind in KINDS and not Path(text).exists():
            return SourcePath(Path(path), kind)
        return SourcePath(Path(text), None)


#: Options for the format of sources.
format_options = opt.with_options(
    [
        click.option("--kind", help="Format of the sources without KIND=. Default: recognized."),
        click.option("--dataset", help="Data set to read from a file with several."),
    ]
)
#: Sources and classes.
source_options = opt.with_options(
    [
        click.argument(
            "paths", nargs=-1, required=True, type=_SourcePathType(), metavar="[KIND=]SOURCES..."
        ),
        click.option(
            "--classes",
            required=True,
            help="The classes: images as for fit, or a file of names (one per line, or JSON).",
        ),
        click.option(
            "--synonyms",
            type=opt.PATH,
            help='Other names of classes: {"class": ["other name", …], …} in a JSON file.',
        ),
        format_options,
    ]
)


def _match(
    paths: tuple[SourcePath, ...],
    classes: str,
    synonyms: Path | None,
    kind: str | None,
    dataset: str | None,
) -> tuple[tuple[str, ...], list["ClassMatch"]]:
    """Return the class names, and the sources matched with them."""
    from promptboost.pool.names import read_synonyms
    from promptboost.pool.readers import read_sources
    from promptboost.pool.sources import match_classes

    names = tuple(class_names_of(classes))
    others = read_synonyms(synonyms) if synonyms else None
    read = (read_sources(path, given or kind, dataset=dataset) for path, given in paths)
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

    Reads the files released for CuPL, DCLIP, GPT4Vis, AdaptCLIPZS, AWT, ProAPO and CLIP_benchmark, your
    own JSON, JSONL, CSV (class,sentence) or text (class, tab, sentence), and pools saved by build. All
    commands take --json and --quiet.
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


@pool.command(name="check", short_help="Match names with classes, and check sentences.")
@source_options
@click.option("--encoder", help="Also report sentences too long for this encoder.")
@with_output
def check(out: Output, encoder: str | None, **options: Any) -> None:
    """Match the names in SOURCES with the classes, and report problems of the sentences."""
    from promptboost.cli import pool_text
    from promptboost.pool.lint import lint

    names, matches = _match(**options)
    model = None
    if encoder is not None:
        from promptboost.encoders import load_encoder

        model = load_encoder(encoder)
    checked = [(match, lint(match, names, model)) for match in matches]
    out.result(pool_text.check_record(names, checked), lambda: pool_text.check_text(names, checked))


@pool.command(
    name="build", short_help="Join sources into a pool for fit --prompts.", epilog=_BUILD_EXAMPLES
)
@source_options
@opt.output_option("NAME.jsonl for a pool, NAME.json for sentences only.", "file", metavar="FILE")
@click.option(
    "--sources",
    metavar="NAME,NAME,…",
    help="Use only these sources, such as cupl,dclip. Default: all.",
)
@click.option(
    "--concatenate",
    type=click.Choice(["none", "one", "all"]),
    default="none",
    show_default=True,
    help="Also combine each sentence with no template, one template, or all of them.",
)
@click.option(
    "--templates",
    type=click.Choice(["own", "clip"]),
    help="promptboost's templates, or CLIP's 80 as published. Default: own, or those of a source.",
)
@with_output
def build(
    out: Output,
    file: Path,
    sources: str | None,
    concatenate: "Concatenate",
    templates: str | None,
    **options: Any,
) -> None:
    """Join SOURCES into one pool, for fit --prompts.

    A .jsonl file contains templates, sentences, concatenations and the source of each prompt, a .json
    file only the sentences of each class, for other programs. Blank, damaged and repeated sentences
    are left out.
    """
    from promptboost.cli import pool_text
    from promptboost.io import write_json
    from promptboost.pool import TEMPLATES, save_pool
    from promptboost.pool.sources import choose_sources, join_pool, join_sentences
    from promptboost.pool.templates import clip_templates

    as_pool = file.suffix.lower() != ".json"
    if not as_pool and (concatenate != "none" or templates is not None):
        option = "--templates" if concatenate == "none" else "--concatenate"
        raise SettingError(
            f"{option} needs a pool, but {file} would contain only sentences; use "
            f"-o {file.with_suffix('.jsonl')}"
        )
    names, matches = _match(**options)
    if sources is not None:
        matches = choose_sources(matches, [name.strip() for name in sources.split(",")])
    # A pool stores the templates of a source, a .json file stores filled ones.
    described = [match for match in matches if not (as_pool and match.source.templates)]
    joined = join_sentences(described, names) if described else {}
    record = pool_text.build_record(file, names, described, joined)
    if as_pool:
        shared = clip_templates() if templates == "clip" else TEMPLATES if templates else None
        pool = join_pool(matches, names, templates=shared, concatenate=concatenate)
        save_pool(pool, file)
        statistics = pool.statistics()
        record |= {
            name: statistics[name] for name in ("prompts", "prompts_by_source", "fingerprint")
        }
    else:
        write_json(file, joined)
    if without := record["without_sentences"]:
        out.note(f"{len(without)} of {len(names)} classes have no sentence: {few(without)}")
    out.result(record, lambda: pool_text.build_text(record))


@pool.command(name="show", short_help="List the names in a file, or the sentences of one class.")
@click.argument("file", type=opt.PATH)
@click.option("--class", "class_name", help="List the sentences of this class.")
@format_options
@with_output
def show(
    out: Output, file: Path, class_name: str | None, kind: str | None, dataset: str | None
) -> None:
    """List the names in FILE with numbers of sentences, or the sentences of one class.

    For a saved pool, counts include filled templates and concatenations.
    """
    from promptboost.cli import pool_text
    from promptboost.pool.io import is_saved_pool, load_pool
    from promptboost.pool.readers import read_sources
    from promptboost.pool.sources import sentences_about

    if kind is None and is_saved_pool(file):
        pool = load_pool(file)
        if class_name is None:
            out.result(pool_text.pool_record(file, pool), lambda: pool_text.pool_text(pool))
            return
        texts = pool_text.prompts_by_source(pool, class_name)
    else:
        read = read_sources(file, kind, dataset=dataset)
        if class_name is None:
            out.result(pool_text.show_record(read), lambda: pool_text.show_text(read))
            return
        texts = sentences_about(read, class_name)
    lines = [plain(text) for sentences in texts.values() for text in sentences]
    out.result({"class": class_name, "sentences": texts}, "\n".join(lines))


pool.add_command(generate)
pool.add_command(grow)

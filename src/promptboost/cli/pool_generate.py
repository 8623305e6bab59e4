"""``promptboost pool generate`` and ``promptboost pool grow``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from promptboost.cli.output import Output, speaks
from promptboost.cli.pool_asking import COUNT, ask, asks, exit_code, replies_of

_ENVIRONMENT = """
\b
Environment
  OPENAI_API_KEY, ANTHROPIC_API_KEY    the key; a server on this machine needs none
  OPENAI_BASE_URL, ANTHROPIC_BASE_URL  the server, where --base-url is not given
"""
_EXAMPLES = """
\b
promptboost pool generate owl bat -o birds.json --model NAME --dry-run
promptboost pool generate --classes my-pictures -o sentences.json --model NAME
promptboost fit my-pictures -o run --prompts sentences.json
"""
_GROW_EXAMPLES = """
\b
promptboost pool grow run -o grown.json --model NAME
promptboost pool grow run -o grown.json --model NAME --fit second-run
"""
_output = click.option(
    "-o", "--output", "file", required=True, type=click.Path(path_type=Path), metavar="FILE.json"
)


@click.command(
    name="generate",
    short_help="Ask a language model for sentences.",
    epilog=_EXAMPLES + _ENVIRONMENT,
)
@click.argument("names", nargs=-1)
@click.option(
    "--classes", help="The classes, if not NAMES: pictures as for fit, or a file of names."
)
@_output
@click.option(
    "--questions",
    "kind",
    type=click.Choice(["cupl", "dclip", "contrast"]),
    default="cupl",
    show_default=True,
    help="How a class looks; its features; or how it differs from others.",
)
@click.option(
    "--per-class", type=COUNT, default=20, show_default=True, help="Sentences of each class."
)
@asks
@speaks
def generate(
    out: Output,
    names: tuple[str, ...],
    classes: str | None,
    file: Path,
    kind: Any,
    per_class: int,
    **asking: Any,
) -> int:
    """Ask a language model for sentences about classes, for fit --prompts.

    Every reply is kept. Whatever ends the asking, the same command asks only what is missing; with
    all replies there it makes the file again without a server.
    """
    from promptboost.cli import pool_generate_words as words
    from promptboost.pool.llm import questions_for

    _check_file(file, classes, asking)
    class_names = _class_names(names, classes)
    questions = questions_for(class_names, kind, per_class)
    done = ask(out, questions, file, per_class, **asking)
    if done is None:
        return 0
    from json import dumps

    from promptboost.files import write_text

    write_text(file, dumps(done.sentences, ensure_ascii=False, indent=1) + "\n")
    record = words.record(file, replies_of(file, asking), done, done.sentences)
    out.result(record, lambda: words.text(record))
    return exit_code(done)


@click.command(
    name="grow",
    short_help="Ask about the classes a run mixes up.",
    epilog=_GROW_EXAMPLES + _ENVIRONMENT,
)
@click.argument("run", type=click.Path(path_type=Path))
@_output
@click.option("--pairs", type=COUNT, default=10, show_default=True, help="Pairs to ask about.")
@click.option(
    "--per-pair", type=COUNT, default=5, show_default=True, help="Sentences of each class of it."
)
@click.option(
    "--fit",
    "new_run",
    type=click.Path(path_type=Path),
    metavar="NEW_RUN",
    help="Then fit as RUN was fitted, with the new file, into this folder.",
)
@click.option("--overwrite", is_flag=True, help="Replace the run in NEW_RUN.")
@asks
@speaks
def grow(
    out: Output,
    run: Path,
    file: Path,
    pairs: int,
    per_pair: int,
    new_run: Path | None,
    overwrite: bool,
    **asking: Any,
) -> int:
    """Ask what tells the classes apart that RUN mixes up most, and add the answers to its sentences.

    FILE.json then holds the sentences of RUN and the new ones, for another fit with --prompts.
    """
    from promptboost.cli import pool_generate_words as words
    from promptboost.pool.llm.growing import pair_questions
    from promptboost.runs import growing
    from promptboost.runs.folder import RunFolder

    _check_file(file, None, asking)
    found = growing.run_pairs(run, pairs)
    # What can go wrong should do so before anything is paid for.
    growing.check_growable(run, file)
    if new_run is not None:
        RunFolder(new_run).check_free(overwrite=overwrite, resume=False)
    done = ask(out, pair_questions(found, per_pair), file, None, **asking)
    if done is None:
        return 0
    grown = growing.write_grown(run, done.sentences, file)
    record = words.record(file, replies_of(file, asking), done, grown)
    record |= words.growth(found, done)
    if (pictures := growing.measured_on(run)) is not None:
        out.note(
            f"the pairs were found on the pictures held out ({pictures}): figures of the next fit on "
            "the same pictures flatter a little"
        )
    if new_run is None:
        record["next"] = growing.fit_command(run, file)
    else:
        growing.fit_again(
            run, file, new_run, overwrite=overwrite, progress=out.progress, say=out.note
        )
        record |= {"run": str(new_run), **words.before_and_after(run, new_run)}
    out.result(record, lambda: words.text(record))
    return exit_code(done)


def _check_file(file: Path, classes: str | None, asking: dict[str, Any]) -> None:
    """Refuse a name for the sentences under which something else would be lost or not be read."""
    from promptboost.errors import SettingError

    if file.suffix.lower() != ".json":
        raise SettingError(f"{file} will hold JSON, so its name has to end in .json")
    others = {"the replies": replies_of(file, asking), "the names of the classes": classes}
    for what, other in others.items():
        if other is not None and file.absolute() == Path(other).absolute():
            raise SettingError(f"{file} is to hold {what}, too; choose another name")


def _class_names(names: tuple[str, ...], classes: str | None) -> Sequence[str]:
    from promptboost.errors import SettingError
    from promptboost.pool import build_pool
    from promptboost.pool.classes import read_class_names

    if bool(names) == (classes is not None):
        raise SettingError("give the classes once: their names, or a source with --classes")
    if classes is None:
        return build_pool(names).class_names  # checks them
    if (found := read_class_names(classes)) is not None:
        return found
    from promptboost.data import load_data

    return load_data(classes, check=False, progress=False).class_names

"""``promptboost pool generate`` and ``promptboost pool grow``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import allow_download_option, run_argument, with_options
from promptboost.cli.output import UNUSABLE, Interrupted, Output, speaks

if TYPE_CHECKING:
    from promptboost.llm.generation import Generated
    from promptboost.llm.questions import Question

COUNT = click.IntRange(min=1)
_BUDGET = click.IntRange(min=0)


#: Options for the model, the budget and the replies.
asks = with_options(
    [
        click.option("--model", required=True, help="Name of the model on its server."),
        click.option("--base-url", help="URL of the server, such as http://localhost:8000/v1."),
        click.option(
            "--provider",
            type=click.Choice(["openai", "anthropic"]),
            default="openai",
            show_default=True,
            help="Protocol of the server; most others are compatible with OpenAI.",
        ),
        click.option("--temperature", type=click.FloatRange(min=0), help="Default: the server's."),
        click.option(
            "--reply-tokens",
            type=COUNT,
            default=2048,
            show_default=True,
            help="Maximum tokens per reply. Reasoning models need more.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=120.0,
            show_default=True,
            help="Seconds to wait for data from the server.",
        ),
        click.option(
            "--workers",
            type=COUNT,
            default=8,
            show_default=True,
            help="Number of parallel requests.",
        ),
        click.option(
            "--max-requests",
            type=_BUDGET,
            help="Stop after this many requests, including retries. 0 uses cached replies only.",
        ),
        click.option("--max-tokens", type=_BUDGET, help="Stop before using more tokens than this."),
        click.option(
            "--replies",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE.jsonl",
            help="File that caches the replies. Default: next to FILE.json.",
        ),
        click.option(
            "--price",
            type=(float, float),
            metavar="IN OUT",
            help="Price per million tokens of questions and of replies, for the estimate.",
        ),
        click.option(
            "--dry-run", is_flag=True, help="Show the questions and costs without sending anything."
        ),
    ]
)


def replies_of(file: Path, asking: dict[str, Any]) -> Path:
    """Return the file of replies: the given one, or one next to the output."""
    replies: Path | None = asking["replies"]
    return replies or file.with_name(f"{file.stem}.replies.jsonl")


def ask(
    out: Output, questions: Sequence["Question"], file: Path, per_class: int | None, **asking: Any
) -> "Generated | None":
    """Ask the questions, or with ``--dry-run`` print the plan and return None."""
    from promptboost.cli import pool_text
    from promptboost.llm.client import ModelSettings
    from promptboost.llm.generation import generate_pool, plan
    from promptboost.llm.replies import ReplyCache
    from promptboost.llm.requests import Budget, RequestPolicy

    named = ("model", "provider", "base_url", "temperature", "reply_tokens", "timeout")
    settings = ModelSettings(**{name: asking[name] for name in named})
    replies = replies_of(file, asking)
    cache = ReplyCache(replies)
    if cache.damaged:
        out.note(f"{replies}: {cache.damaged} lines cannot be read and are ignored")
    if asking["dry_run"]:
        planned = plan(questions, settings, cache, asking["price"])
        out.result(pool_text.plan_record(planned), lambda: pool_text.plan_text(planned))
        return None
    _check_places(file, replies)
    budget = Budget(asking["max_requests"], asking["max_tokens"])
    policy = RequestPolicy(budget, asking["workers"], progress=out.progress, notify=out.note)
    try:
        generated = generate_pool(questions, settings, cache, per_class=per_class, policy=policy)
    except KeyboardInterrupt:
        raise Interrupted(f"the same command again (replies so far are in {replies})") from None
    for line in pool_text.remarks(generated):
        out.note(line)
    pool_text.check_any(generated, replies)
    return generated


def _check_places(*files: Path) -> None:
    """Raise a SettingError unless the files can be written; checked before anything is paid for."""
    from promptboost.errors import SettingError
    from promptboost.run.preflight import check_writable

    for file in files:
        if not file.absolute().parent.is_dir():
            raise SettingError(f"there is no folder {file.parent}; create it first")
        if file.is_dir():
            raise SettingError(f"{file} is a folder; give the name of a file")
        check_writable(file.absolute().parent)


def exit_code(done: "Generated") -> int:
    """Return the exit code; stopping at the budget is no error."""
    answers = done.answers
    return UNUSABLE if answers.stopped is not None and not answers.exhausted else 0


_ENVIRONMENT = """
\b
Environment
  OPENAI_API_KEY, ANTHROPIC_API_KEY    the key; servers with --base-url may need none
  OPENAI_BASE_URL, ANTHROPIC_BASE_URL  the server, if --base-url is not given
"""
_EXAMPLES = """
\b
promptboost pool generate owl bat -o birds.json --model NAME --dry-run
promptboost pool generate --classes my-images -o sentences.json --model NAME
promptboost fit my-images -o run --prompts sentences.json
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
    short_help="Generate sentences with a language model.",
    epilog=_EXAMPLES + _ENVIRONMENT,
)
@click.argument("names", nargs=-1)
@click.option("--classes", help="Classes instead of NAMES: images as for fit, or a file of names.")
@_output
@click.option(
    "--questions",
    "kind",
    type=click.Choice(["cupl", "dclip", "contrast"]),
    default="cupl",
    show_default=True,
    help="Appearance of a class, its features, or its differences from others.",
)
@click.option("--per-class", type=COUNT, default=20, show_default=True, help="Sentences per class.")
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
    """Generate sentences about classes with a language model, for fit --prompts.

    Every reply is cached. After an interruption, the same command asks only the missing questions; if
    none is missing, it writes the file without a server.
    """
    from promptboost.cli import pool_text
    from promptboost.llm.questions import questions_for

    _check_file(file, classes, asking)
    class_names = _class_names(names, classes)
    questions = questions_for(class_names, kind, per_class)
    done = ask(out, questions, file, per_class, **asking)
    if done is None:
        return 0
    from promptboost.io import write_json

    write_json(file, done.sentences)
    record = pool_text.generated_record(file, replies_of(file, asking), done, done.sentences)
    out.result(record, lambda: pool_text.generated_text(record))
    return exit_code(done)


@click.command(
    name="grow",
    short_help="Generate sentences about the classes a run confuses.",
    epilog=_GROW_EXAMPLES + _ENVIRONMENT,
)
@run_argument
@_output
@click.option("--pairs", type=COUNT, default=10, show_default=True, help="Number of pairs.")
@click.option(
    "--per-pair", type=COUNT, default=5, show_default=True, help="Sentences per class of a pair."
)
@click.option(
    "--fit",
    "new_run",
    type=click.Path(path_type=Path),
    metavar="NEW_RUN",
    help="Also fit into this folder, with the settings of RUN and the new file.",
)
@click.option("--overwrite", is_flag=True, help="Replace the run in NEW_RUN.")
@allow_download_option
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
    allow_download: bool,
    **asking: Any,
) -> int:
    """Generate sentences that distinguish the classes RUN confuses most.

    FILE.json will hold the sentences of RUN and the new ones, for another fit with --prompts.
    """
    from promptboost.cli import pool_text
    from promptboost.llm import growth
    from promptboost.llm.questions import pair_questions
    from promptboost.run.run_folder import RunFolder

    _check_file(file, None, asking)
    confused = growth.run_pairs(run, pairs)
    # Errors should appear before anything is paid for.
    growth.check_growable(run, file)
    if new_run is not None:
        from promptboost.encoders.registry import check_trusted

        RunFolder(new_run).check_free(overwrite=overwrite, resume=False)
        for name in RunFolder(run).settings.encoders:
            check_trusted(name, allow_download=allow_download)
    done = ask(out, pair_questions(confused, per_pair), file, None, **asking)
    if done is None:
        return 0
    grown = growth.write_grown(run, done.sentences, file)
    record = pool_text.generated_record(file, replies_of(file, asking), done, grown)
    record |= pool_text.growth_record(confused, done)
    if (images := growth.measured_on(run)) is not None:
        out.note(
            f"the pairs were chosen on held-out images ({images}): results of the next fit on the same "
            "images are slightly optimistic"
        )
    if new_run is None:
        record["next"] = growth.fit_command(run, file)
    else:
        from promptboost.report import write_card, write_report

        growth.fit_again(
            run,
            file,
            new_run,
            overwrite=overwrite,
            progress=out.progress,
            say=out.note,
            finish=(write_report, write_card),
        )
        record |= {"run": str(new_run), **pool_text.before_and_after(run, new_run)}
    out.result(record, lambda: pool_text.generated_text(record))
    return exit_code(done)


def _check_file(file: Path, classes: str | None, asking: dict[str, Any]) -> None:
    """Raise a SettingError if the output would overwrite an input or cannot be read by fit."""
    from promptboost.errors import SettingError

    if file.suffix.lower() != ".json":
        raise SettingError(f"{file} will hold JSON, so its name has to end in .json")
    others = {"the replies": replies_of(file, asking), "the names of the classes": classes}
    for what, other in others.items():
        if other is not None and file.absolute() == Path(other).absolute():
            raise SettingError(f"{file} is to hold {what}, too; choose another name")


def class_names_of(classes: str) -> Sequence[str]:
    """Return the class names of a file of names, or of images."""
    from promptboost.pool.names import read_class_names

    if (names := read_class_names(classes)) is not None:
        return names
    from promptboost.data import load_data

    return load_data(classes, check=False).class_names


def _class_names(names: tuple[str, ...], classes: str | None) -> Sequence[str]:
    from promptboost.errors import SettingError
    from promptboost.pool.text import check_class_names

    if bool(names) == (classes is not None):
        raise SettingError("give the classes once: their names, or a source with --classes")
    return check_class_names(names) if classes is None else class_names_of(classes)

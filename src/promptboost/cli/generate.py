"""``promptboost pool generate`` and ``pool grow``, and what they share with ``fit --describe``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import UNUSABLE, Output, with_output

if TYPE_CHECKING:
    from promptboost.config import FitConfig
    from promptboost.llm.generation import Generated
    from promptboost.llm.questions import Question

_SECONDS = click.FloatRange(min=0, min_open=True)

# Options for the replies and the budget.
_budget_options = opt.with_options(
    [
        opt.default_option(
            "--reply-tokens",
            opt.COUNT,
            2048,
            "Maximum tokens per reply. Reasoning models need more.",
        ),
        opt.default_option(
            "--timeout", _SECONDS, 120.0, "Seconds to wait for data from the server."
        ),
        click.option(
            "--max-requests",
            type=click.IntRange(min=0),
            help="Stop after this many requests, including retries. 0 uses cached replies only.",
        ),
        click.option(
            "--max-tokens",
            type=click.IntRange(min=0),
            help="Send no request after this many tokens were used, of questions and replies.",
        ),
    ]
)
#: Options of ``generate`` and ``grow``.
request_options = opt.with_options(
    [
        opt.model_options(required=True),
        click.option("--temperature", type=click.FloatRange(min=0), help="Default: the server's."),
        _budget_options,
        opt.default_option("--workers", opt.COUNT, 8, "Number of parallel requests."),
        click.option(
            "--replies",
            type=opt.FILE,
            metavar="FILE.jsonl",
            help="File that caches the replies. Default: next to FILE.json.",
        ),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Show the questions and their tokens without sending anything.",
        ),
    ]
)
#: Options of ``fit --describe``.
describe_options = opt.with_options(
    [
        click.option(
            "--describe",
            is_flag=True,
            help="Let a language model describe the classes and the differences of confused ones.",
        ),
        opt.model_options(required=False),
        _budget_options,
        click.option(
            "--send-images",
            is_flag=True,
            help="Send the language model a training image of each confused class.",
        ),
        click.option("--yes", "-y", is_flag=True, help="Send requests without confirmation."),
    ]
)
_MODEL = ("model", "provider", "base_url", "reply_tokens", "timeout")
#: The names of these options.
DESCRIBING = ("describe", *_MODEL, "max_requests", "max_tokens", "send_images", "yes")


def describe(
    out: Output,
    data: str,
    run: Path,
    settings: "FitConfig",
    describing: dict[str, Any],
    **options: Any,
) -> "FitConfig":
    """Describe the classes of a fit; return its settings with the descriptions."""
    from promptboost.cli import pool_text
    from promptboost.errors import SettingError
    from promptboost.llm.client import ModelSettings
    from promptboost.llm.description import Describer
    from promptboost.llm.generation import Budget, Plan
    from promptboost.run.run_folder import RunFolder

    if not describing["model"]:
        raise SettingError("--describe needs a language model: add --model NAME")

    def confirm(classes: Plan, pairs: Plan) -> None:
        estimate = pool_text.estimate_text(classes, pairs, describing["send_images"])
        if describing["yes"] or not (sys.stdin.isatty() and sys.stderr.isatty()):
            for line in estimate.split("\n"):
                out.note(line)
        elif not click.confirm(f"{estimate}\nSend them?", err=True):
            out.note("nothing was sent")
            raise click.exceptions.Exit(1)

    describer = Describer(
        ModelSettings(**{name: describing[name] for name in _MODEL}),
        Budget(describing["max_requests"], describing["max_tokens"]),
        send_images=describing["send_images"],
        confirm=confirm,
    )
    with opt.resumable(f"replies so far are in {RunFolder(run).replies_path}"):
        return describer.describe(data, run, settings, say=out.note, **options)


def replies_of(file: Path, requests: dict[str, Any]) -> Path:
    """Return the file of replies: the given one, or one next to the output."""
    replies: Path | None = requests["replies"]
    return replies or file.with_name(f"{file.stem}.replies.jsonl")


def ask(
    out: Output, questions: Sequence["Question"], file: Path, **requests: Any
) -> "Generated | None":
    """Ask the questions, or with ``--dry-run`` print the plan and return None."""
    from promptboost.cli import pool_text
    from promptboost.errors import PoolError
    from promptboost.llm.client import ModelSettings
    from promptboost.llm.generation import Budget, generate_pool, plan
    from promptboost.llm.replies import ReplyCache

    settings = ModelSettings(**{name: requests[name] for name in (*_MODEL, "temperature")})
    replies = replies_of(file, requests)
    cache = ReplyCache(replies)
    if cache.damaged:
        out.note(f"{replies}: {cache.damaged} lines cannot be read and are ignored")
    if requests["dry_run"]:
        planned = plan(questions, settings, cache)
        out.result(pool_text.plan_record(planned), lambda: pool_text.plan_text(planned))
        return None
    _check_writable(file, replies)
    with opt.resumable(f"replies so far are in {replies}"):
        generated = generate_pool(
            questions,
            settings,
            cache,
            budget=Budget(requests["max_requests"], requests["max_tokens"]),
            workers=requests["workers"],
            progress=out.progress,
            notify=out.note,
        )
    for line in generated.remarks():
        out.note(line)
    if not generated.sentences:
        raise PoolError(
            f"there are no sentences, so nothing was written: {generated.problem}; see {replies}"
        )
    return generated


def _check_writable(*files: Path) -> None:
    """Raise a SettingError unless the files can be written, before the first paid request."""
    from promptboost.errors import SettingError
    from promptboost.run.run_folder import check_writable

    for file in files:
        if not file.absolute().parent.is_dir():
            raise SettingError(f"there is no folder {file.parent}; create it first")
        if file.is_dir():
            raise SettingError(f"{file} is a folder; give the name of a file")
        check_writable(file.absolute().parent)


def _finish(out: Output, done: "Generated", record: dict[str, Any]) -> int:
    """Print what was generated, and return the exit code; stopping at the budget is no error."""
    from promptboost.cli import pool_text

    out.result(record, lambda: pool_text.generated_text(record))
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
"""
_file_option = opt.output_option(name="file", metavar="FILE.json")


@click.command(
    name="generate",
    short_help="Generate sentences with a language model.",
    epilog=_EXAMPLES + _ENVIRONMENT,
)
@click.argument("names", nargs=-1)
@click.option("--classes", help="Classes instead of NAMES: images as for fit, or a file of names.")
@_file_option
@click.option(
    "--questions",
    "kind",
    type=click.Choice(["cupl", "dclip", "context"]),
    default="cupl",
    show_default=True,
    help="Appearance of a class, its features, or its appearance among the other classes.",
)
@opt.default_option("--per-class", opt.COUNT, 20, "Sentences per class.")
@request_options
@with_output
def generate(
    out: Output,
    names: tuple[str, ...],
    classes: str | None,
    file: Path,
    kind: Any,
    per_class: int,
    **requests: Any,
) -> int:
    """Generate sentences about classes with a language model, for fit --prompts.

    Every reply is cached. After an interruption, the same command asks only the missing questions; if
    none is missing, it writes the file without a server.
    """
    from promptboost.cli import pool_text
    from promptboost.errors import SettingError
    from promptboost.llm.questions import questions_for

    if file.suffix.lower() != ".json":
        raise SettingError(f"{file} will contain JSON, so its name must end in .json")
    _check_file(file, classes, requests)
    class_names = _class_names(names, classes)
    questions = questions_for(class_names, kind, per_class)
    done = ask(out, questions, file, **requests)
    if done is None:
        return 0
    from promptboost.io import write_json

    write_json(file, done.sentences)
    record = pool_text.generated_record(file, replies_of(file, requests), done, done.sentences)
    return _finish(out, done, record)


@click.command(
    name="grow",
    short_help="Generate sentences about the classes a run confuses.",
    epilog=_GROW_EXAMPLES + _ENVIRONMENT,
)
@opt.run_argument
@_file_option
@opt.default_option("--pairs", opt.COUNT, 10, "Number of pairs.")
@opt.default_option("--per-pair", opt.COUNT, 5, "Sentences per class of a pair.")
@request_options
@with_output
def grow(
    out: Output,
    run: Path,
    file: Path,
    pairs: int,
    per_pair: int,
    **requests: Any,
) -> int:
    """Generate sentences that distinguish the classes RUN confuses most.

    FILE.json will hold the sentences of RUN and the new ones, for another fit; its command is printed.
    For a run that was fitted with a saved pool, give FILE.jsonl.
    """
    from promptboost.cli import pool_text
    from promptboost.llm import growth
    from promptboost.llm.questions import pair_questions
    from promptboost.run.run_folder import RunFolder

    _check_file(file, None, requests)
    confused, names = growth.run_pairs(run, pairs), RunFolder(run).ensemble.class_names
    # Raise errors before the first paid request.
    growth.check_growable(run, file)
    done = ask(out, pair_questions(confused, names, per_pair), file, **requests)
    if done is None:
        return 0
    grown = growth.write_grown(run, done.sentences, file)
    record = pool_text.generated_record(file, replies_of(file, requests), done, grown)
    record |= pool_text.growth_record(confused, done)
    if (images := RunFolder(run).results.task.held_out) is not None:
        out.note(
            f"the pairs were chosen on held-out images ({images}): results of the next fit on the same "
            "images are slightly optimistic"
        )
    record["next"] = growth.fit_command(run, file)
    return _finish(out, done, record)


def _check_file(file: Path, classes: str | None, requests: dict[str, Any]) -> None:
    """Raise a SettingError if the output would overwrite an input."""
    from promptboost.errors import SettingError

    inputs = {"the replies": replies_of(file, requests), "the names of the classes": classes}
    for content, path in inputs.items():
        if path is not None and file.absolute() == Path(path).absolute():
            raise SettingError(f"{file} already contains {content}; choose another name")


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

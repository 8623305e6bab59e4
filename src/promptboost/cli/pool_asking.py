"""Asking a language model from the command line: the options, and what they set going."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.failing import UNUSABLE, Interrupted
from promptboost.cli.output import Command, Output

if TYPE_CHECKING:
    from promptboost.pool.llm import Generated, Plan, Question

__all__ = ["COUNT", "ask", "asks", "exit_code", "replies_of"]

COUNT = click.IntRange(min=1)
_BUDGET = click.IntRange(min=0)


def asks(function: Command) -> Command:
    """Give a command the options about the model, the budget and the replies."""
    options = [
        click.option("--model", required=True, help="Name of the model, as its server knows it."),
        click.option("--base-url", help="Server to ask, such as http://localhost:8000/v1."),
        click.option(
            "--provider",
            type=click.Choice(["openai", "anthropic"]),
            default="openai",
            show_default=True,
            help="Protocol of the server; most others speak OpenAI's.",
        ),
        click.option("--temperature", type=click.FloatRange(min=0), help="Default: the server's."),
        click.option(
            "--reply-tokens",
            type=COUNT,
            default=2048,
            show_default=True,
            help="Most tokens of a reply. Models that think before they answer need more.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=120.0,
            show_default=True,
            help="Seconds to wait for a reply.",
        ),
        click.option(
            "--workers", type=COUNT, default=8, show_default=True, help="Questions at a time."
        ),
        click.option(
            "--max-requests",
            type=_BUDGET,
            help="Stop after so many, retries counted. 0 uses the replies that are there.",
        ),
        click.option("--max-tokens", type=_BUDGET, help="Stop before more than so many are used."),
        click.option(
            "--replies",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE.jsonl",
            help="Where replies are kept and found again. Default: beside FILE.json.",
        ),
        click.option(
            "--price",
            type=(float, float),
            metavar="IN OUT",
            help="Price of a million tokens asked and answered, for the estimate.",
        ),
        click.option("--dry-run", is_flag=True, help="Show the questions and costs; ask nothing."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def replies_of(file: Path, asking: dict[str, Any]) -> Path:
    """Give the file of replies: the one named, or one beside the output."""
    given: Path | None = asking["replies"]
    return given or file.with_name(f"{file.stem}.replies.jsonl")


def ask(
    out: Output, questions: Sequence["Question"], file: Path, per_class: int | None, **asking: Any
) -> "Generated | None":
    """Ask, or say what asking would take; None for the latter."""
    from promptboost.cli import pool_generate_words as words
    from promptboost.pool.llm import Budget, Manner, ModelSettings, ReplyCache, generate_pool

    settings = ModelSettings(
        **{
            name: asking[name]
            for name in ("model", "provider", "base_url", "temperature", "reply_tokens", "timeout")
        }
    )
    replies = replies_of(file, asking)
    cache = ReplyCache(replies)
    if cache.damaged:
        out.note(f"{replies}: lines that cannot be read, left as they are: {cache.damaged}")
    if asking["dry_run"]:
        planned = _plan(questions, settings, cache, asking["price"])
        out.result(words.plan_record(planned), lambda: words.plan_text(planned))
        return None
    _check_places(file, replies)
    manner = Manner(
        Budget(asking["max_requests"], asking["max_tokens"]),
        asking["workers"],
        progress=out.progress,
        say=out.note,
    )
    with _going_on(replies):
        done = generate_pool(questions, settings, cache, per_class=per_class, manner=manner)
    for line in words.remarks(done):
        out.note(line)
    words.check_any(done, replies)
    return done


def _plan(questions: Any, settings: Any, cache: Any, price: tuple[float, float] | None) -> "Plan":
    from promptboost.pool.llm import plan
    from promptboost.pool.llm.generating import Price

    return plan(questions, settings, cache, Price(*price) if price else None)


def _check_places(*files: Path) -> None:
    """Find out before anything is paid for whether it can be written."""
    from promptboost.errors import SettingError
    from promptboost.runs.checks import check_writable

    for file in files:
        if not file.absolute().parent.is_dir():
            raise SettingError(f"there is no folder {file.parent}; make it first")
        if file.is_dir():
            raise SettingError(f"{file} is a folder; give the name of a file")
        check_writable(file.absolute().parent)


@contextmanager
def _going_on(replies: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"the same command again (what was answered is kept in {replies})"
        ) from None


def exit_code(done: "Generated") -> int:
    """Give the exit code: an error that ended the asking counts, a budget does not."""
    answers = done.answers
    return UNUSABLE if answers.stopped is not None and not answers.exhausted else 0

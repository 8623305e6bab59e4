"""What ``promptboost pool generate`` and ``grow`` say."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from promptboost.cli.output import percent, plain
from promptboost.errors import PoolError, few
from promptboost.llm import Generated, Pair, Plan
from promptboost.llm.replies import NOTHING_YET
from promptboost.runs.run_folder import RunFolder

_SHOWN = 12  # --json has them all


def plan_record(plan: Plan) -> dict[str, Any]:
    """Write down what asking would take, ready for JSON."""
    return {
        "dry_run": True,
        "questions": [
            {"class": question.class_name, "text": question.text} for question in plan.questions
        ],
        "answered_before": plan.cached,
        "requests": plan.requests,
        "input_tokens": plan.input_tokens,
        "output_tokens": plan.output_tokens,
        "cost": plan.cost,
    }


def plan_text(plan: Plan) -> str:
    """Lay out the questions and what they take."""
    lines = [f"{question.class_name}: {question.text}" for question in plan.questions[:_SHOWN]]
    if (rest := len(plan.questions) - _SHOWN) > 0:
        lines.append(f"and {rest:,} more questions; --json has them all")
    cost = "not known without --price" if plan.cost is None else f"about {plan.cost:,.4g}"
    lines += [
        "",
        f"requests  {plan.requests:,} ({plan.cached:,} questions have a reply already)",
        f"tokens    about {plan.input_tokens:,} asked and {plan.output_tokens:,} answered",
        f"cost      {cost}",
        "nothing was sent",
    ]
    return "\n".join(map(plain, lines))


def remarks(done: Generated) -> Iterator[str]:
    """Return a line for each thing that did not go as wished."""
    answers = done.answers
    if answers.stopped is not None:
        yield f"stopped: {answers.stopped}; the same command goes on with what is missing"
    if answers.failed:
        question, reason = next(iter(answers.failed.items()))
        yield f"questions without a reply: {len(answers.failed)}; {question[:60]}…: {reason}"
    if done.dropped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in done.dropped.most_common())
        yield f"lines of replies left out: {reasons}"
    if NOTHING_YET in done.dropped:
        yield "models that think before they answer need more tokens: try a larger --reply-tokens"
    if done.missing:
        yield f"classes without a new sentence: {few(done.missing)}"


def check_any(done: Generated, replies: Path) -> None:
    """Raise if there is no sentence to write."""
    if done.sentences:
        return
    answers = done.answers
    reason = answers.stopped or next(iter(answers.failed.values()), None)
    if reason is None:
        reason = f"no reply holds a sentence that can be used; read them in {replies}"
    raise PoolError(f"there are no sentences, so nothing was written: {reason}")


def record(
    file: Path, replies: Path, done: Generated, written: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Write down what was asked and written, ready for JSON."""
    answers = done.answers
    return {
        "file": str(file),
        "classes": len(written),
        "sentences": sum(map(len, written.values())),
        "without_new_sentences": list(done.missing),
        "replies": str(replies),
        "answered": len(answers.replies),
        "answered_before": answers.cached,
        "requests": answers.requests,
        "tokens": answers.tokens,
        "failed": [{"question": key, "reason": why} for key, why in answers.failed.items()],
        "stopped": answers.stopped,
        "left_out": dict(done.dropped),
    }


def growth(pairs: Sequence[Pair], done: Generated) -> dict[str, Any]:
    """Add what is asked about, and what is new."""
    return {
        "pairs": [{"classes": [pair.one, pair.other], "pictures": pair.count} for pair in pairs],
        "new_sentences": sum(map(len, done.sentences.values())),
    }


def before_and_after(run: Path, new_run: Path) -> dict[str, Any]:
    """Return the accuracy of two runs."""
    before, after = (RunFolder(path).results.measured() for path in (run, new_run))
    return {"accuracy_before": before, "accuracy": after}


def text(record: Mapping[str, Any]) -> str:
    """Lay out what was written and what it took."""
    lines = [
        f"{' and '.join(pair['classes'])}: {pair['pictures']} images mixed up"
        for pair in record.get("pairs", [])[:_SHOWN]
    ]
    new = f", {record['new_sentences']} of them from replies" if "new_sentences" in record else ""
    lines += [
        f"{record['file']}: {record['sentences']} sentences of {record['classes']} classes{new}",
        f"replies  {record['replies']}: {record['answered']} used, {record['answered_before']} of "
        "them there before",
        f"spent    {record['requests']} requests, {record['tokens']:,} tokens",
    ]
    if "next" in record:
        lines.append(f"fit      {record['next']}")
    if "run" in record:
        before, after = percent(record["accuracy_before"]), percent(record["accuracy"])
        lines.append(f"run      {record['run']}: accuracy {before} before, {after} now")
    return "\n".join(map(plain, lines))

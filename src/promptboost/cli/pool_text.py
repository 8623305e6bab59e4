"""Output of ``promptboost pool``: records for ``--json``, and text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptboost.cli.output import plain, table
from promptboost.errors import count, few
from promptboost.llm.generation import Generated, Plan
from promptboost.llm.questions import Pair
from promptboost.pool import PromptPool
from promptboost.pool.lint import LintFinding
from promptboost.pool.names import match_names
from promptboost.pool.readers.source import Source
from promptboost.pool.sources import ClassMatch

Checked = Sequence[tuple[ClassMatch, Sequence[LintFinding]]]
_QUESTIONS_SHOWN = 12  # questions and pairs; --json has them all
_SHOWN = 3  # details of a finding; --json has them all
_WIDTH = 200  # of a detail; a damaged file may hold sentences of any length


def check_record(names: Sequence[str], checked: Checked) -> dict[str, Any]:
    """Return a JSON-serializable record of all findings."""
    return {
        "classes": len(names),
        "without_sentences": _without(names, _described(checked)),
        "sources": [_source_record(match, findings) for match, findings in checked],
    }


def _source_record(match: ClassMatch, findings: Sequence[LintFinding]) -> dict[str, Any]:
    source, names = match.source, match.names
    return {
        **_about(source),
        "sentences": sum(map(len, match.texts.values())),
        "matched": [
            {"class": name.class_name, "name": name.entry, "how": name.how}
            for name in names.matches
        ],
        "missing": list(names.missing),
        "unused": list(names.unused),
        "findings": [
            {
                "code": finding.rule.code,
                "severity": finding.rule.severity,
                "title": finding.rule.title,
                "details": list(finding.details),
            }
            for finding in findings
        ],
    }


def check_text(names: Sequence[str], checked: Checked) -> str:
    """Format the findings, with the first few details of each."""
    parts = ["\n".join(_source_lines(match, findings)) for match, findings in checked]
    without = _without(names, _described(checked))
    served = len(names) - len(without)
    end = f"{served} of {len(names)} classes have sentences"
    return "\n\n".join([*parts, plain(f"{end}; not {few(without)}" if without else end)])


def _source_lines(match: ClassMatch, findings: Sequence[LintFinding]) -> list[str]:
    source, names = match.source, match.names
    how = Counter(name.how for name in names.matches)
    sentences = sum(map(len, match.texts.values()))
    spellings = ", ".join(f"{count} {word}" for word, count in how.items()) or "none"
    lines = [
        plain(f"{source.path}  ({source.name}, read as {source.kind})"),
        f"  templates: {len(source.templates)}"
        if source.templates
        else f"  matched names: {spellings}",
        f"  {sentences} sentences of {len(match.texts)} classes",
    ]
    for finding in findings:
        rule = finding.rule
        lines.append(f"  {rule.code} {rule.severity}: {rule.title} ({len(finding.details)})")
        lines += [plain(f"    {_short(detail)}") for detail in finding.details[:_SHOWN]]
        if (more := len(finding.details) - _SHOWN) > 0:
            lines.append(f"    and {more} more; --json has them all")
        lines.append(f"    {rule.meaning}")
    return lines


def build_record(
    file: Path,
    names: Sequence[str],
    matches: Sequence[ClassMatch],
    joined: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return a JSON-serializable record of the sentences written and left out."""
    read = sum(len(texts) for match in matches for texts in match.texts.values())
    written = sum(map(len, joined.values()))
    return {
        "file": str(file),
        "classes": len(joined),
        "sentences": written,
        "without_sentences": _without(names, [joined]),
        "left_out": {
            "blank": sum(sum(match.source.blank.values()) for match in matches),
            "damaged": sum(len(match.source.skipped) for match in matches),
            "repeated": read - written,
            "names_of_no_class": sum(len(match.names.unused) for match in matches),
        },
        "sources": [
            {
                "name": match.source.name,
                "path": str(match.source.path),
                "sentences": sum(map(len, match.texts.values())),
            }
            for match in matches
        ],
    }


def build_text(record: Mapping[str, Any]) -> str:
    """Format the numbers of sentences written and left out."""
    left_out = ", ".join(
        f"{count} {what.replace('_', ' ')}" for what, count in record["left_out"].items() if count
    )
    lines = [f"{record['file']}: {record['sentences']:,} sentences of {record['classes']} classes"]
    if "prompts" in record:
        lines.append(f"{record['prompts']:,} prompts: {_by_source(record['prompts_by_source'])}")
    return "\n".join(map(plain, [*lines, *([f"left out: {left_out}"] if left_out else [])]))


def show_record(sources: Sequence[Source]) -> dict[str, Any]:
    """Return a JSON-serializable record of the number of sentences per name."""
    records = [
        {
            **_about(source),
            "templates": list(source.templates),
            "sentences": {entry: len(texts) for entry, texts in source.sentences.items()},
        }
        for source in sources
    ]
    return {"sources": records}


def _about(source: Source) -> dict[str, Any]:
    return {"name": source.name, "kind": source.kind, "path": str(source.path)}


def show_text(sources: Sequence[Source]) -> str:
    """Format the number of sentences per name, and the templates."""
    rows = [
        [entry, str(len(texts)), source.name]
        for source in sources
        for entry, texts in source.sentences.items()
    ]
    parts = [table(["name", "sentences", "source"], rows, left=(0, 2))] if rows else []
    parts += [plain(template) for source in sources for template in source.templates]
    return "\n".join(parts)


def pool_record(file: Path, pool: PromptPool) -> dict[str, Any]:
    """Return a JSON-serializable record of a saved pool."""
    sizes = {name: len(pool.prompts(name)) for name in pool.class_names}
    return {"path": str(file), **pool.statistics(), "prompts_of": sizes}


def pool_text(pool: PromptPool) -> str:
    """Format the number of prompts per class and per source."""
    rows = [[name, f"{len(pool.prompts(name)):,}"] for name in pool.class_names]
    ending = f"{pool.size:,} prompts: {_by_source(pool.prompts_by_source)}"
    return f"{table(['name', 'prompts'], rows)}\n{plain(ending)}"


def prompts_by_source(pool: PromptPool, class_name: str) -> dict[str, list[str]]:
    """Return the texts of one class of a pool by source."""
    names = match_names([class_name], pool.class_names).entries(class_name) or [class_name]
    texts: dict[str, list[str]] = {}
    for prompt in pool.prompts(names[0]):
        texts.setdefault(prompt.source, []).append(prompt.text)
    return texts


def _by_source(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {source}" for source, count in counts.items())


def _described(checked: Checked) -> list[Mapping[str, Any]]:
    # Templates apply to every class and describe none.
    return [match.texts for match, _ in checked if not match.source.templates]


def _short(detail: str) -> str:
    return detail if len(detail) <= _WIDTH else f"{detail[: _WIDTH - 1]}…"


def _without(names: Sequence[str], texts: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in names if not any(name in by_class for by_class in texts)]


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return a JSON-serializable summary of a plan."""
    questions = [
        {"class": question.class_name, "text": question.text} for question in plan.questions
    ]
    return {"dry_run": True, **vars(plan), "questions": questions}


def plan_text(plan: Plan) -> str:
    """Format the questions and their cost."""
    lines = [
        f"{question.class_name}: {question.text}" for question in plan.questions[:_QUESTIONS_SHOWN]
    ]
    if (more := len(plan.questions) - _QUESTIONS_SHOWN) > 0:
        lines.append(f"and {more:,} more questions; --json has them all")
    lines += [
        "",
        f"requests  {plan.requests:,} ({plan.answered_before:,} questions have a reply already)",
        f"tokens    about {plan.input_tokens:,} for questions and {plan.output_tokens:,} for replies",
        "nothing was sent",
    ]
    return "\n".join(map(plain, lines))


def estimate_text(classes: Plan, pairs: Plan, images: bool) -> str:
    """Format the cost of describing the classes of a fit."""
    lines = [
        f"requests  {classes.requests:,} about the classes ({classes.answered_before:,} questions have a "
        f"reply already), then at most {pairs.requests:,} about confused pairs",
        f"tokens    about {classes.input_tokens + classes.output_tokens:,}, then at most "
        f"{pairs.input_tokens + pairs.output_tokens:,}",
    ]
    if images:
        lines.append("images    one training image of each confused class is sent")
    return "\n".join(lines)


def generated_record(
    file: Path, replies: Path, done: Generated, written: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return a JSON-serializable summary of questions and sentences."""
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


def growth_record(pairs: Sequence[Pair], done: Generated) -> dict[str, Any]:
    """Return a JSON-serializable summary of the pairs and the new sentences."""
    return {
        "pairs": [{"classes": [pair.first, pair.second], "images": pair.count} for pair in pairs],
        "new_sentences": sum(map(len, done.sentences.values())),
    }


def generated_text(record: Mapping[str, Any]) -> str:
    """Format the result and its cost."""
    lines = [
        f"{' and '.join(pair['classes'])}: {count(pair['images'], 'image')} confused"
        for pair in record.get("pairs", [])[:_QUESTIONS_SHOWN]
    ]
    new_sentences = (
        f", {record['new_sentences']} of them from replies" if "new_sentences" in record else ""
    )
    lines += [
        f"{record['file']}: {record['sentences']} sentences of {record['classes']} classes{new_sentences}",
        f"replies  {record['replies']}: {record['answered']} used, {record['answered_before']} of "
        "them cached",
        f"spent    {record['requests']} requests, {record['tokens']:,} tokens",
    ]
    if "next" in record:
        lines.append(f"fit      {record['next']}")
    return "\n".join(map(plain, lines))

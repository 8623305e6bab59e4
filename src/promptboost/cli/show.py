"""``promptboost show``, ``diff`` and ``report``: what was learned, as text and as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import run_argument
from promptboost.cli.output import Output, percent, plain, speaks, table

if TYPE_CHECKING:
    from promptboost.model import PromptEnsemble, Round
    from promptboost.model.edits import ClassDifference, Difference
    from promptboost.run.results import Results

_EDITED = "the text was edited since it was measured: figures and report are about the one before"
_EXAMPLES = """
\b
promptboost diff run run-with-more-images
promptboost diff run/ensemble.json edited.json --class owl
"""


@click.command(name="show")
@run_argument
@click.option("--by", type=click.Choice(["class", "round"]), default="class", show_default=True)
@click.option("--class", "class_name", metavar="NAME", help="One class only.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Prompts of each class, or rounds.",
)
@click.option("--all", "everything", is_flag=True, help="All prompts, or all rounds.")
@speaks
def show(
    out: Output, run: Path, by: str, class_name: str | None, top: int, everything: bool
) -> None:
    """Read what was learned: the sentences of each class with their weights, or round by round.

    Ends with the images that stayed hard: wrong labels are often among them.
    """
    import msgspec

    from promptboost.run.run_folder import RunFolder

    folder = RunFolder(run)

    def read() -> "tuple[PromptEnsemble, Results | None]":
        return _read(run), folder.results if folder.metrics_path.exists() else None

    ensemble, results = folder.steady(read)
    names = list(ensemble.class_names) if class_name is None else [class_name]
    classes = {name: ensemble.prompts(name) for name in names}
    hard = [] if results is None else msgspec.to_builtins(results.hardest)
    measured = None if results is None else results.ensemble_fingerprint
    edited = measured is not None and not ensemble.has_fingerprint(measured)
    limit = None if everything else top

    def text() -> str:
        parts = [_heading(ensemble) + (f"\n{_EDITED}" if edited else "")]
        if by == "class":
            parts += [_class_text(ensemble, name, limit) for name in names]
        else:
            first = enumerate(ensemble.rounds[:limit], start=1)
            parts += [_round_text(number, item, names) for number, item in first]
        if hard and class_name is None:
            parts.append(_hard_text(hard[:limit]))
        return "\n\n".join(parts)

    rounds = [
        {"template": r.template, "error": r.error, "banks": {n: dict(r.banks[n]) for n in names}}
        for r in ensemble.rounds
    ]
    out.result({"classes": classes, "rounds": rounds, "hardest": hard, "edited": edited}, text)


def _heading(ensemble: "PromptEnsemble") -> str:
    composers = " and ".join(dict.fromkeys(item.composer for item in ensemble.rounds))
    return (
        f"{len(ensemble.class_names)} classes, {len(ensemble)} round{'s' * (len(ensemble) != 1)} "
        f"({plain(composers)}), {ensemble.n_prompts} sentences, learned on "
        f"{plain(' and '.join(item.id for item in ensemble.encoders) or 'an unknown encoder')}"
    )


def _class_text(ensemble: "PromptEnsemble", name: str, limit: int | None) -> str:
    prompts = ensemble.prompts(name)
    lines = [f"{plain(name)}  ({len(prompts)} sentences)"]
    for prompt, weight in list(prompts.items())[:limit]:
        lines.append(f"  {percent(weight):>7}  {plain(prompt)}")
    if limit is not None and len(prompts) > limit:
        rest = sum(list(prompts.values())[limit:])
        lines.append(f"  {percent(rest):>7}  … {len(prompts) - limit} more (--all shows them)")
    return "\n".join(lines)


def _round_text(number: int, item: "Round", names: list[str]) -> str:
    lines = [
        f"round {number}: {plain(item.template)}  "
        f"(error {percent(item.template_error)} with it alone, {percent(item.error)} in the end)"
    ]
    for name in names:
        lines.append(f"  {plain(name)}")
        bank = sorted(item.banks[name].items(), key=lambda pair: -pair[1])
        lines += [f"    {copies:>4} × {plain(prompt)}" for prompt, copies in bank]
    return "\n".join(lines)


def _hard_text(hard: list[dict[str, Any]]) -> str:
    rows = [
        [item["image"], item["label"], item["predicted"], percent(item["weight"])] for item in hard
    ]
    return "images that stayed hard\n" + table(
        ["image", "label", "taken for", "weight"], rows, (0, 1, 2)
    )


@click.command(name="diff", epilog=_EXAMPLES)
@click.argument("before", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("after", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--class", "class_name", metavar="NAME", help="One class only.")
@speaks
def diff(out: Output, before: Path, after: Path, class_name: str | None) -> None:
    """Compare what two runs say: sentences added, removed, and those whose weight changed.

    RUN is a run folder, or a file such as its ensemble.json. Weights are a sentence's part in the score
    of its class.
    """
    import msgspec

    from promptboost.model.edits import difference

    changes = difference(_read(before), _read(after), class_name)
    out.result(msgspec.to_builtins(changes), lambda: _difference_text(changes))


def _read(place: Path) -> "PromptEnsemble":
    from promptboost.model import PromptEnsemble
    from promptboost.run.run_folder import RunFolder

    if place.is_file():
        return PromptEnsemble.load(place)
    folder = RunFolder(place)
    folder.check_readable()
    return PromptEnsemble.load(folder.ensemble_path)


def _difference_text(difference: "Difference") -> str:
    if not difference:
        return f"no difference: {difference.same} sentences with the same weights"
    parts = [f"class added: {plain(name)}" for name in difference.added_classes]
    parts += [f"class removed: {plain(name)}" for name in difference.removed_classes]
    parts += [_changes(name, changes) for name, changes in difference.classes.items()]
    return "\n\n".join([*parts, f"{difference.same} sentences are in both"])


def _changes(name: str, changes: "ClassDifference") -> str:
    lines = [plain(name)]
    lines += [f"  + {percent(weight):>7}  {plain(text)}" for text, weight in changes.added.items()]
    lines += [
        f"  - {percent(weight):>7}  {plain(text)}" for text, weight in changes.removed.items()
    ]
    for text, step in changes.changed.items():
        before, after = percent(step["before"]), percent(step["after"])
        lines.append(f"  ~ {after:>7}  {plain(text)}  (was {before})")
    return "\n".join(lines)


@click.command(name="report")
@run_argument
@speaks
def report(out: Output, run: Path) -> None:
    """Write the report (report.html) and the model card (README.md) of a run again."""
    from promptboost.report import write_card, write_report
    from promptboost.run.run_folder import RunFolder

    folder = RunFolder(run)
    folder.check_finished()
    with folder.writing("report"):
        report, card = write_report(run), write_card(run)
    out.result(
        {"report": str(report), "card": str(card)},
        f"report  {plain(str(report))}\ncard    {plain(str(card))}",
    )

"""``promptboost show``, ``diff`` and ``report``: a run as text and as a page."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptboost.cli import options as opt
from promptboost.cli.output import Output, percent, plain, table, with_output
from promptboost.errors import count

if TYPE_CHECKING:
    from promptboost.model import PromptEnsemble
    from promptboost.model.edits import ClassDifference, Difference
    from promptboost.run.results import Results

_EDITED = "the text was edited after the fit: results and report are those of the unedited text"
_SHOWN = 8  # sentences per class, and images
_EXAMPLES = """
\b
promptboost diff run run-with-more-images
promptboost diff run/ensemble.json edited.json --class owl
"""


@click.command(name="show")
@opt.run_argument
@click.option(
    "--class",
    "class_names",
    multiple=True,
    metavar="NAME",
    help="Show only this class; repeatable.",
)
@click.option("--all", "everything", is_flag=True, help="Show all sentences, not eight per class.")
@with_output
def show(out: Output, run: Path, class_names: tuple[str, ...], everything: bool) -> None:
    """Show the sentences of each class with their weights.

    Also lists the hardest training images, which often have wrong labels. --json has the rounds too.
    """
    from promptboost.run.run_folder import RunFolder

    folder = RunFolder(run)

    def read() -> "tuple[PromptEnsemble, Results | None]":
        return _read(run), folder.results if folder.metrics_path.exists() else None

    ensemble, results = folder.steady(read)
    names = list(class_names or ensemble.class_names)
    classes = {name: ensemble.prompts(name) for name in names}
    hard = () if results is None else results.hardest
    measured = None if results is None else results.ensemble_fingerprint
    edited = measured is not None and measured != ensemble.fingerprint
    limit = None if everything else _SHOWN

    def text() -> str:
        composers = " and ".join(dict.fromkeys(step.composer for step in ensemble.rounds))
        encoders = " and ".join(encoder.id for encoder in ensemble.encoders)
        heading = (
            f"{len(ensemble.class_names)} classes, {count(len(ensemble), 'round')} "
            f"({plain(composers)}), {ensemble.n_prompts} sentences, fitted on "
            f"{plain(encoders or 'an unknown encoder')}"
        )
        parts = [heading + (f"\n{_EDITED}" if edited else "")]
        parts += [_class_text(ensemble, name, limit) for name in names]
        if hard and not class_names:
            rows = [[h.image, h.label, h.predicted, percent(h.weight)] for h in hard[:limit]]
            headers = ["image", "label", "predicted", "weight"]
            parts.append(f"hardest training images\n{table(headers, rows, (0, 1, 2))}")
        return "\n\n".join(parts)

    round_records = [
        {"template": r.template, "error": r.error, "banks": {n: dict(r.banks[n]) for n in names}}
        for r in ensemble.rounds
    ]
    pinned = {name: ensemble.pinned[name] for name in names if name in ensemble.pinned}
    record = {"classes": classes, "pinned": pinned, "rounds": round_records}
    out.result({**record, "hardest": hard, "edited": edited}, text)


def _class_text(ensemble: "PromptEnsemble", name: str, limit: int | None) -> str:
    prompts, pinned = ensemble.prompts(name), ensemble.pinned.get(name, ())
    lines = [f"{plain(name)}  ({len(prompts)} sentences)"]
    for prompt, weight in list(prompts.items())[:limit]:
        mark = "  (added by hand)" if prompt in pinned else ""
        lines.append(f"  {percent(weight):>7}  {plain(prompt)}{mark}")
    if limit is not None and len(prompts) > limit:
        remaining = sum(list(prompts.values())[limit:])
        lines.append(f"  {percent(remaining):>7}  … {len(prompts) - limit} more (--all shows them)")
    return "\n".join(lines)


@click.command(name="diff", epilog=_EXAMPLES)
@click.argument("before", metavar="RUN", type=opt.PATH)
@click.argument("after", metavar="RUN", type=opt.PATH)
@click.option("--class", "class_name", metavar="NAME", help="Show only this class.")
@with_output
def diff(out: Output, before: Path, after: Path, class_name: str | None) -> None:
    """Compare two runs: sentences added, removed, and those whose weight changed.

    RUN is a run folder, or a file such as its ensemble.json. The weight of a sentence is its share of the
    score of its class.
    """
    from promptboost.model.edits import difference

    changes = difference(_read(before), _read(after), class_name)
    out.result(changes, lambda: _difference_text(changes))


def _read(path: Path) -> "PromptEnsemble":
    from promptboost.model import PromptEnsemble
    from promptboost.run.run_folder import RunFolder

    if path.is_file():
        return PromptEnsemble.load(path)
    folder = RunFolder(path)
    folder.check_readable()
    return folder.ensemble


def _difference_text(difference: "Difference") -> str:
    if not difference:
        return f"no difference: {difference.same} sentences with the same weights"
    parts = [f"class added: {plain(name)}" for name in difference.added_classes]
    parts += [f"class removed: {plain(name)}" for name in difference.removed_classes]
    parts += [_changes(name, changes) for name, changes in difference.classes.items()]
    return "\n\n".join([*parts, f"{difference.same} sentences in both"])


def _changes(name: str, changes: "ClassDifference") -> str:
    lines = [plain(name)]
    for mark, weights in (("+", changes.added), ("-", changes.removed)):
        lines += [f"  {mark} {percent(w):>7}  {plain(text)}" for text, w in weights.items()]
    for text, step in changes.changed.items():
        after, was = percent(step["after"]), percent(step["before"])
        lines.append(f"  ~ {after:>7}  {plain(text)}  (was {was})")
    return "\n".join(lines)


@click.command(name="report")
@opt.run_argument
@with_output
def report(out: Output, run: Path) -> None:
    """Rewrite the report (report.html) and the model card (README.md) of a run."""
    from promptboost.report import write_card, write_report
    from promptboost.run.run_folder import RunFolder

    folder = RunFolder(run)
    folder.check_finished()
    with folder.writing("report"):
        report, card = write_report(run), write_card(run)
    out.result(
        {"report": report, "card": card},
        f"report  {plain(str(report))}\ncard    {plain(str(card))}",
    )

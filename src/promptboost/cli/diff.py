"""``promptboost diff``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptboost.cli.output import Output, percent, plain, speaks

if TYPE_CHECKING:
    from promptboost.model import PromptEnsemble
    from promptboost.model.difference import ClassDifference, Difference

_EXAMPLES = """
\b
promptboost diff run run-with-more-images
promptboost diff run/ensemble.json edited.json --class owl
"""


@click.command(name="diff", epilog=_EXAMPLES)
@click.argument("before", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("after", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--class", "class_name", metavar="NAME", help="One class only.")
@speaks
def command(out: Output, before: Path, after: Path, class_name: str | None) -> None:
    """Compare what two runs say: sentences added, removed, and those whose weight changed.

    RUN is a run folder, or a file such as its ensemble.json. Weights are a sentence's part in the score
    of its class.
    """
    from promptboost.model.difference import Difference
    from promptboost.model.edits import check_known

    ensembles = [_read(place) for place in (before, after)]
    if class_name is not None:
        for ensemble in ensembles:
            check_known(ensemble, class_name)
    found = Difference.between(*ensembles)
    if class_name is not None:
        found = found.of_class(class_name)
    out.result(found.record(), lambda: _text(found))


def _read(place: Path) -> "PromptEnsemble":
    from promptboost.model import PromptEnsemble
    from promptboost.runs.folder import RunFolder

    if place.is_file():
        return PromptEnsemble.load(place)
    folder = RunFolder(place)
    folder.check_readable()
    return PromptEnsemble.load(folder.ensemble_path)


def _text(found: "Difference") -> str:
    if not found:
        return f"no difference: {found.same} sentences with the same weights"
    parts = [f"class added: {plain(name)}" for name in found.added_classes]
    parts += [f"class removed: {plain(name)}" for name in found.removed_classes]
    parts += [_class_text(one) for one in found.classes]
    return "\n\n".join([*parts, f"{found.same} sentences are in both"])


def _class_text(one: "ClassDifference") -> str:
    lines = [plain(one.name)]
    lines += [f"  + {percent(weight):>7}  {plain(text)}" for text, weight in one.added.items()]
    lines += [f"  - {percent(weight):>7}  {plain(text)}" for text, weight in one.removed.items()]
    for text, (before, after) in one.changed.items():
        lines.append(f"  ~ {percent(after):>7}  {plain(text)}  (was {percent(before)})")
    return "\n".join(lines)

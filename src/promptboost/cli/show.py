"""``promptboost show``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.output import Output, percent, plain, speaks, table

if TYPE_CHECKING:
    from promptboost.model import PromptEnsemble, Round

_EDITED = "the text was edited since it was measured: figures and report are about the one before"


@click.command(name="show")
@click.argument("run", type=click.Path(path_type=Path))
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
def command(
    out: Output, run: Path, by: str, class_name: str | None, top: int, everything: bool
) -> None:
    """Read what was learnt: the sentences of each class with their weights, or round by round.

    Ends with the images that stayed hard: wrong labels are often among them.
    """
    import msgspec

    from promptboost.model import PromptEnsemble
    from promptboost.runs.results import old_names
    from promptboost.runs.run_folder import RunFolder

    folder = RunFolder(run)
    folder.check_readable()
    ensemble = PromptEnsemble.load(folder.ensemble_path)
    names = list(ensemble.class_names) if class_name is None else [class_name]
    classes = {name: ensemble.prompts(name) for name in names}
    results = folder.results if folder.metrics_path.exists() else None
    hardest = [] if results is None else msgspec.to_builtins(results.hardest)
    hard = [old_names(item) for item in hardest]
    measured = None if results is None else results.ensemble_fingerprint
    edited = measured is not None and not ensemble.has_fingerprint(measured)
    limit = None if everything else top

    def text() -> str:
        parts = [_heading(ensemble) + (f"\n{_EDITED}" if edited else "")]
        if by == "class":
            parts += [_class_text(ensemble, name, limit) for name in names]
        else:
            parts += [_round_text(m, ensemble.rounds[m], names) for m in _first(ensemble, limit)]
        if hard and class_name is None:
            parts.append(_hard_text(hard[: limit or len(hard)]))
        return "\n\n".join(parts)

    rounds = [
        {"template": r.template, "error": r.error, "banks": _banks(r, names)}
        for r in ensemble.rounds
    ]
    out.result({"classes": classes, "rounds": rounds, "hardest": hard, "edited": edited}, text)


def _first(ensemble: "PromptEnsemble", limit: int | None) -> range:
    return range(min(len(ensemble), limit or len(ensemble)))


def _banks(item: "Round", names: list[str]) -> dict[str, dict[str, int]]:
    return {name: dict(item.banks[name]) for name in names}


def _heading(ensemble: "PromptEnsemble") -> str:
    composers = " and ".join(dict.fromkeys(item.composer for item in ensemble.rounds))
    return (
        f"{len(ensemble.class_names)} classes, {len(ensemble)} round{'s' * (len(ensemble) != 1)} "
        f"({plain(composers)}), {ensemble.n_prompts} sentences, learnt on "
        f"{plain(ensemble.encoder_id or 'an unknown encoder')}"
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
        f"round {number + 1}: {plain(item.template)}  "
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

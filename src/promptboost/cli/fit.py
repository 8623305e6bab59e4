"""``promptboost fit``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import (
    allow_download_option,
    config_file_option,
    config_options,
    default_encoder,
    embeds,
    engine_options,
    image_sources,
    placement,
)
from promptboost.cli.output import (
    Interrupted,
    Output,
    facts,
    percent,
    plain,
    sparkline,
    speaks,
    table,
    typed,
)
from promptboost.config import PRESETS, FitConfig, read_config

if TYPE_CHECKING:
    from promptboost.run.results import Results
    from promptboost.run.run_folder import RunFolder

_EXAMPLES = """
\b
promptboost fit my-images -o run
promptboost fit my-images -o run --shots 8 --prompts sentences.json
promptboost fit list.csv -o run --encoder ViT-B-32/openai
"""


@click.command(name="fit", epilog=_EXAMPLES)
@click.argument("data", shell_complete=image_sources)
@click.option(
    "-o", "--output", "run", required=True, type=click.Path(path_type=Path), metavar="RUN"
)
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    help="Settings that go together: paper is the greedy composer with many rounds, as published. "
    "What is typed here or in the --config wins.",
)
@config_file_option("Settings in a TOML file, named as in a run.toml.", expose_value=True)
@config_options(presets=True)
@click.option("--overwrite", is_flag=True, help="Replace the run that is there.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run, with its settings.")
@click.option(
    "--track",
    multiple=True,
    type=click.Choice(["mlflow", "wandb"]),
    help="Also log settings, figures and files with an experiment tracker.",
)
@allow_download_option
@embeds
@engine_options
@speaks
def fit(
    out: Output,
    data: str,
    run: Path,
    preset: str | None,
    config: str | None,
    overwrite: bool,
    resume: bool,
    track: tuple[str, ...],
    opening: dict[str, Any],
    **options: Any,
) -> None:
    """Learn a classifier made of sentences from labeled images.

    DATA is a folder with one folder of images for each class (perhaps below train/ and test/), a
    CSV or JSONL file with the columns path, label and perhaps split, a benchmark as NAME:FOLDER
    (see 'promptboost data check --help'), or the word emoji. RUN is
    the folder to write: the classifier as text (ensemble.json), its vectors, the figures, a report.
    """
    from promptboost.api import fit as fit_run
    from promptboost.data.source import DataSource
    from promptboost.errors import RunError, SettingError
    from promptboost.run.preflight import check_inputs
    from promptboost.run.run_folder import RunFolder
    from promptboost.trackers import make_trackers

    if overwrite and resume:
        raise SettingError("--overwrite and --resume cannot both be meant; give one of them")
    place = placement(options)
    typed = {name: value for name, value in options.items() if value is not None}
    asked = {
        **(PRESETS[preset] if preset else {}),
        **(read_config(config) if config else {}),
        **typed,
    }
    folder = RunFolder(run)
    before = _before(folder) if resume else None
    settings = (FitConfig() if before is None else before.settings).merged(asked)
    if "encoder" not in asked and before is not None:
        from promptboost.encoders.registry import check_trusted

        for name in settings.encoders:
            check_trusted(name, allow_download=opening["allow_download"])
    if "encoder" not in asked and before is None:
        # What is wrong with the rest is said first, and not behind a word about encoders.
        folder.check_free(overwrite=overwrite, resume=resume)
        check_inputs(DataSource.parse(data), settings)
        settings = settings.merged({"encoder": default_encoder(out)})
    try:
        results = fit_run(
            data,
            run,
            settings,
            overwrite=overwrite,
            resume=resume,
            cache=opening["cache"],
            device=opening["device"],
            progress=out.progress,
            trackers=make_trackers(track) if track else (),
            placement=place,
            say=out.note,
        ).results
    except KeyboardInterrupt:
        if begun := folder.unfinished:
            raise Interrupted(begun.resume_hint) from None
        raise
    except OSError as error:
        if (begun := folder.unfinished) and error.strerror:
            where = f"{error.filename}: " if error.filename else ""
            raise RunError(
                f"{where}{error.strerror}; put that right, then type: {begun.resume_hint}"
            ) from error
        raise
    out.result({"run": str(run), **results.record()}, lambda: summary(run, results))


def _before(folder: "RunFolder") -> "RunFolder | None":
    """Return the run to go on with, or that is finished."""
    return folder.unfinished or (folder if folder.state == "finished" else None)


def summary(run: Path, results: "Results") -> str:
    """Return what a fit prints of its figures."""
    task = results.task
    lines = [
        f"{task.classes} classes, {task.learn_images} images to learn from, "
        f"{task.held_out_images} held out",
        "",
        table(
            ["", "accuracy", "mean of classes", "learned images"],
            [
                [m.label, *map(percent, (m.accuracy, m.class_accuracy, m.learn_accuracy))]
                for m in results.methods
            ],
        ),
        *_unseen(results),
        *_further(results),
        "",
        *_curve([s.accuracy if results.held_out else s.learn_accuracy for s in results.staged]),
        *_facts(results),
        f"report   {run / 'report.html'}",
        f"predict  {typed('predict', str(run))} IMAGES",
    ]
    return "\n".join(plain(part) if "\n" not in part else part for part in lines)


def _further(results: "Results") -> list[str]:
    """Return the figures of the other encoders it was learned on."""
    from promptboost.baselines.measures import OURS

    rows = [
        [item.encoder, *(percent(item.of(name)) for name in ("zero-shot", "pool-mean", OURS))]
        for item in results.transfers
        if item.learned_on
    ]
    if not rows:
        return []
    names = ["learned on too", "zero-shot", "mean of prompts", "boosted"]
    return ["", f"above: on {plain(results.encoder.id)}", "", table(names, rows)]


def _unseen(results: "Results") -> list[str]:
    from promptboost.baselines.measures import OURS

    ours = results.method(OURS)
    if results.overlap is None or ours is None or ours.unseen_accuracy is None:
        return []
    return [f"{ours.label}: {percent(ours.unseen_accuracy)} {results.overlap.without}"]


def _curve(stages: "list[float | None]") -> list[str]:
    values = [value for value in stages if value is not None]
    if len(values) < 2:  # a curve of one point says what the table says
        return []
    return [
        f"by round  {percent(values[0])} {sparkline(values)} {percent(values[-1])}"
        f"  (from {percent(min(values))} to {percent(max(values))})",
        "",
    ]


def _facts(results: "Results") -> list[str]:
    """Return what the words do, and how they were chosen."""
    residual, composed = results.residual, results.composed
    rows = []
    if residual is not None:
        line = "all of an answer: images set aside were answered worse with a residual"
        if residual.penalty is not None:
            line = f"{percent(residual.text_share)} of what decides an answer; the rest is the residual"
        rows.append(("words", line))
    if composed is None:  # the figures of an earlier promptboost
        return [facts(rows)] if rows else []
    return [facts([*rows, *composed.lines()]), ""]

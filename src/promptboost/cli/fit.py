"""``promptboost fit``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli import options as opt
from promptboost.cli.generate import DESCRIBING, describe, describe_options
from promptboost.cli.output import (
    Interrupted,
    Output,
    facts,
    percent,
    plain,
    table,
    typed,
    with_output,
)
from promptboost.config import AUTO, PRESETS, FitConfig, read_config

if TYPE_CHECKING:
    from promptboost.run.results import Results

_EXAMPLES = """
\b
promptboost fit my-images -o run
promptboost fit my-images -o run --shots 8 --prompts sentences.json
promptboost fit my-images -o run --describe --model NAME --transfer conse:lite2
promptboost fit list.csv -o run --encoder ViT-B-32/openai
"""

_ESSENTIAL = (
    *("run", "shots", "prompts", "describe", "model", "encoder", "text_only", "residual", "preset"),
    *("seed", "overwrite", "resume", "as_json"),
)


@click.command(name="fit", cls=opt.ShortHelpCommand, essential=_ESSENTIAL, epilog=_EXAMPLES)
@click.argument("data", type=click.Path())
@opt.output_option(name="run", metavar="RUN")
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    help="A set of settings: paper is the published one, with new crops in each round, CLIP's templates "
    "and 30 rounds on ImageNet. Other options and --config take precedence.",
)
@click.option(
    "--config",
    type=click.Path(),
    help="Settings in a TOML file, named as in a run.toml. Command-line options take precedence.",
)
@opt.config_options(presets=True)
@click.option(
    "--image-column", help="Column of the paths in a manifest. Default: path or file_name."
)
@click.option("--label-column", help="Column of the labels in a manifest. Default: label.")
@opt.overwrite_option
@click.option("--resume", is_flag=True, help="Resume an interrupted run, with its settings.")
@click.option(
    "--track",
    multiple=True,
    type=click.Choice(["mlflow", "wandb"]),
    help="Also log settings, metrics and files with an experiment tracker.",
)
@click.option(
    "--transfer",
    "transfers",
    multiple=True,
    metavar="ENCODER",
    shell_complete=opt.encoder_names,
    help="Then move the text to this encoder, as 'promptboost transfer' does, and add its accuracy to the "
    "report. May be given several times.",
)
@describe_options
@opt.opening_options
@opt.engine_options
@with_output
def fit(
    out: Output,
    data: str,
    run: Path,
    preset: str | None,
    config: str | None,
    image_column: str | None,
    label_column: str | None,
    overwrite: bool,
    resume: bool,
    track: tuple[str, ...],
    transfers: tuple[str, ...],
    opening: dict[str, Any],
    **options: Any,
) -> None:
    """Fit a classifier made of sentences to labeled images.

    DATA is a folder with one folder of images for each class (optionally below train/ and test/) or with
    a metadata.csv, a CSV or JSONL file with the columns path, label and optionally split, a tar of
    WebDataset or a folder of them, a benchmark as NAME:FOLDER (see 'promptboost data check --help'), or
    the word emoji. RUN is the folder to write: the classifier as text (ensemble.json), its vectors,
    results and a report.
    """
    from promptboost.data.source import DataSource, with_columns
    from promptboost.distributed.pool_folder import PoolExecutor
    from promptboost.encoders import load_encoder
    from promptboost.errors import RunError, SettingError
    from promptboost.run.fit import check_inputs, fit_run
    from promptboost.run.run_folder import RunFolder
    from promptboost.run.transfer import transfer_run
    from promptboost.trackers import make_trackers

    data = with_columns(data, image_column, label_column)
    describing = {name: options.pop(name) for name in DESCRIBING}
    if overwrite and resume:
        raise SettingError("--overwrite and --resume cannot be combined")
    placement = opt.placement(options)
    given = _given(data, preset, config, options, describing)
    folder = RunFolder(run)
    resumed = None
    if resume:
        resumed = folder.unfinished or (folder if folder.state == "finished" else None)
    settings = (FitConfig() if resumed is None else resumed.settings).merged(given)
    if "encoder" not in given and resumed is not None:
        from promptboost.encoders.registry import check_trusted

        for name in settings.encoders:
            check_trusted(name, allow_download=opening["allow_download"])
    elif given.get("encoder", (AUTO,)) in (AUTO, (AUTO,)):
        # Report problems with the inputs before choosing an encoder.
        folder.check_free(overwrite=overwrite, resume=resume)
        check_inputs(DataSource.parse(data), settings)
        settings = settings.merged(
            {"encoder": opt.default_encoder(out, allow_download=opening["allow_download"])}
        )
    del opening["allow_download"]
    if describing["describe"]:
        again = {"overwrite": overwrite, "resume": resume}
        settings = describe(out, data, run, settings, describing, **again, **opening)
    for name in transfers:  # an encoder that cannot be loaded is an error before the fit
        load_encoder(name, device=opening["device"])
    try:
        fit_run(
            data,
            run,
            settings,
            overwrite=overwrite,
            resume=resume,
            trackers=make_trackers(track) if track else (),
            executor=PoolExecutor(placement, out.note),
            say=out.note,
            **opening,
        )
    except (KeyboardInterrupt, OSError) as error:
        unfinished = folder.unfinished
        if unfinished and isinstance(error, KeyboardInterrupt):
            raise Interrupted(unfinished.resume_hint) from None
        if unfinished and isinstance(error, OSError) and error.strerror:
            reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
            message = f"{reason}; fix this, then type: {unfinished.resume_hint}"
            raise RunError(message) from error
        raise
    for name in transfers:
        transfer_run(run, name, **opening)
    results = folder.results
    out.result({"run": run, **results.record()}, lambda: summary(run, results))


def _given(
    data: str,
    preset: str | None,
    config: str | None,
    options: dict[str, Any],
    describing: dict[str, Any],
) -> dict[str, Any]:
    """Return the settings of the options, the file and the preset, in this order."""
    from promptboost.data.source import DataSource
    from promptboost.errors import SettingError
    from promptboost.run.fit import preset_settings

    if not describing["describe"] and (describing["model"] or describing["send_images"]):
        raise SettingError("--model and --send-images are for --describe, which is missing")
    given = read_config(config) if config else {}
    given |= {name: value for name, value in options.items() if value is not None}
    if not preset:
        return given
    return preset_settings(preset, DataSource.parse(data), given, describe=describing["describe"])


def summary(run: Path, results: "Results") -> str:
    """Format the results of a fit."""
    from promptboost.baselines import OURS

    task = results.task
    accuracies = [
        [m.label, *map(percent, (m.accuracy, m.class_accuracy, m.learn_accuracy))]
        for m in results.methods
    ]
    ours, without_copies = results.method(OURS), []
    if results.overlap is not None and ours is not None and ours.unseen_accuracy is not None:
        without_copies = [
            f"{ours.label}: {percent(ours.unseen_accuracy)} {results.overlap.without}"
        ]
    lines = [
        f"{task.classes} classes, {task.learn_images} training images, {task.held_out_images} held out",
        "",
        table(["", "accuracy", "mean of classes", "training images"], accuracies),
        *without_copies,
        *_other_encoders(results),
        "",
        *_facts(results),
        f"report   {run / 'report.html'}",
        f"predict  {typed('predict', str(run))} IMAGES",
    ]
    return "\n".join(plain(line) if "\n" not in line else line for line in lines)


def _other_encoders(results: "Results") -> list[str]:
    from promptboost.baselines import OURS

    lines, methods = list[str](), ("zero-shot", "pool-mean", OURS)
    for learned, heading in ((True, "also fitted on"), (False, "transferred to")):
        rows = [
            [moved.encoder, *(percent(moved.accuracy.get(method)) for method in methods)]
            for moved in results.transfers
            if moved.learned_on == learned
        ]
        if rows:
            headers = [heading, "zero-shot", "mean of prompts", "boosted"]
            lines += ["", table(headers, rows)]
    return ["", f"above: on {plain(results.encoder.id)}", *lines] if lines else []


def _facts(results: "Results") -> list[str]:
    """Return the share of the text, and how the text was composed."""
    residual, composed, controls = results.residual, results.composed, results.controls
    rows, limits = [], results.thresholds
    if limits is not None and not results.held_out:
        text = (
            f"{percent(limits.accuracy)} of {limits.images} training images, by fits without them"
        )
        rows.append(("validated", text))
    if residual is not None:
        text = "the whole margin: a residual was less accurate on validation images"
        if residual.used:
            text = f"{percent(residual.text_share)} of the margin; the rest comes from the residual"
        rows.append(("text", text))
    if controls is not None:
        rows.append(("content", str(controls)))
    return [facts([*rows, *(composed.lines() if composed else [])]), ""] if rows or composed else []

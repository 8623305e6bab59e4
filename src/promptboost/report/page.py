"""``report.html``: one page, one file, nothing fetched."""

import os
from pathlib import Path

import promptboost
from promptboost.ensemble.composed import Composed
from promptboost.files import write_text
from promptboost.report import figures
from promptboost.report.banks import class_banks, rows_per_class
from promptboost.report.checks import run_checks
from promptboost.report.reading import Run, read_run
from promptboost.report.rendering import render

__all__ = ["report_html", "write_report"]

CLASSES_SHOWN = 30
CONFUSIONS_SHOWN = 12


def write_report(run: str | os.PathLike[str]) -> Path:
    """Write the report of a run into its folder.

    Parameters
    ----------
    run : path-like
        A run folder, with ``ensemble.json`` and ``metrics.json`` at least.

    Returns
    -------
    pathlib.Path
        The file ``report.html``, whole or, if anything is wrong, as it was before.

    Raises
    ------
    RunError
        If it is not a run folder, or the fit was not finished.
    FileFormatError
        If one of its files cannot be understood.

    Examples
    --------
    >>> write_report("no-such-run")
    Traceback (most recent call last):
    promptboost.errors.RunError: no-such-run is not a run folder. To make one, type: \
promptboost fit DATA -o no-such-run
    """
    file = Path(run) / "report.html"
    write_text(file, report_html(read_run(run)))
    return file


def report_html(run: Run) -> str:
    """Give the report of a run as HTML."""
    metrics = run.metrics
    checks = run_checks(run)
    found = [check for check in checks if check.answer.outcome == "found"]
    most = rows_per_class(len(run.ensemble.class_names))
    return render(
        "report.html.j2",
        run=run,
        ensemble=run.ensemble,
        composed=Composed.of(run.ensemble),
        metrics=metrics,
        task=metrics.task,
        version=promptboost.__version__,
        zero_shot=metrics.measured("zero_shot"),
        boosted=metrics.measured("boosted"),
        methods=figures.method_rows(metrics),
        curves=figures.curves(metrics),
        legend=figures.legend(metrics),
        found=sorted(found, key=lambda check: check.rule.severity != "issue"),
        quiet=[check for check in checks if check.answer.outcome != "found"],
        classes=figures.class_rows(metrics),
        classes_shown=CLASSES_SHOWN,
        confusions=metrics.confusions[:CONFUSIONS_SHOWN],
        confusions_left=metrics.confusions[CONFUSIONS_SHOWN:],
        hardest=figures.hard_rows(metrics),
        banks=class_banks(run.ensemble, most),
        most=most,
        transfers=figures.transfer_rows(metrics),
        settings=figures.setting_tables(run.settings),
        timing=figures.timing_rows(metrics),
    )

"""``report.html``, one page with nothing to fetch, and ``README.md``, the card that goes with a run."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

import promptboost
from promptboost.baselines.measures import OURS
from promptboost.model.explanation import Explanation
from promptboost.model.provenance import Composed
from promptboost.report import figures, phrases, svg
from promptboost.report.checks import run_checks
from promptboost.report.run import Run, check_run, read_run
from promptboost.run.findings import SHOWN
from promptboost.run.run_folder import RunFolder

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: Any) -> str:
    """Render a template of this package to text that UTF-8 can encode."""
    return phrases.printable(_environment().get_template(template).render(**values))


@cache
def _environment() -> "Environment":
    # A fit that writes no report should not wait for jinja2.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("promptboost.report"),
        # Markdown has its own marks and its own filter; all else is HTML.
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        percent=phrases.percent,
        number=phrases.number,
        md=phrases.escaped,
        among=phrases.among,
        fenced=phrases.fenced,
    )
    environment.globals.update(
        points=phrases.points,
        count=phrases.count,
        bar=svg.bar,
        dumbbell=svg.dumbbell,
        strip=svg.strip,
        swatch=svg.swatch,
        # It escapes the text in it.
        figure=lambda explanation: Markup(explanation._repr_html_()),
    )
    return environment


def explanations_html(
    title: str, explanations: Sequence[Explanation], thumbnails: Mapping[str, str]
) -> str:
    """Return a page with the figures of explanations and thumbnails of their images."""
    return render(
        "explanations.html.j2", title=title, explanations=explanations, thumbnails=thumbnails
    )


CLASSES_SHOWN = 30
CONFUSIONS_SHOWN = 12
_CARD_PROMPTS, _CARD_CLASSES = 3, 50


def write_report(run: str | os.PathLike[str]) -> Path:
    """Write the report of a run into its folder.

    Parameters
    ----------
    run : path-like
        A run folder, with ``ensemble.json`` and ``metrics.json`` at least.

    Returns
    -------
    pathlib.Path
        The file ``report.html``; on an error it stays as it was.

    Raises
    ------
    RunError
        If it is not a run folder, or the fit was not finished.
    FileFormatError
        If one of its files is damaged.

    Examples
    --------
    >>> write_report("no-such-run")
    Traceback (most recent call last):
    promptboost.errors.RunError: no-such-run is not a run folder. To make one, type: \
promptboost fit DATA -o no-such-run
    """
    return _write(run, "report.html", report_html)


def report_html(run: Run) -> str:
    """Return the report of a run as HTML."""
    results = run.results
    checks = run_checks(run)
    found = [check for check in checks if check.answer.outcome == "found"]
    most = figures.rows_per_class(len(run.ensemble.class_names))
    return render(
        "report.html.j2",
        run=run,
        ensemble=run.ensemble,
        composed=Composed.of(run.ensemble),
        results=results,
        task=results.task,
        version=promptboost.__version__,
        zero_shot=results.measured("zero-shot"),
        boosted=results.measured(),
        ours=results.method(OURS),
        leaked=results.held_out and results.overlap is not None and results.overlap.leaks.images,
        methods=figures.method_rows(results),
        curves=figures.curves(results),
        certainty=figures.certainty(results),
        legend=figures.legend(results),
        found=sorted(found, key=lambda check: check.rule.severity != "issue"),
        quiet=[check for check in checks if check.answer.outcome != "found"],
        classes=figures.class_rows(results),
        classes_shown=CLASSES_SHOWN,
        confusions=results.confusions[:CONFUSIONS_SHOWN],
        confusions_left=results.confusions[CONFUSIONS_SHOWN:],
        hardest=figures.hard_rows(results),
        suspects=() if run.issues is None else run.issues.first(None)[:SHOWN],
        banks=figures.class_banks(run.ensemble, most),
        most=most,
        transfers=figures.transfer_rows(results),
        settings=figures.setting_tables(run.settings),
        timing=figures.timing_rows(results),
    )


def write_card(run: str | os.PathLike[str]) -> Path:
    """Write the model card of a run into its folder, as ``README.md``; see :func:`write_report`."""
    return _write(run, "README.md", card_markdown)


def _write(run: str | os.PathLike[str], name: str, page: Callable[[Run], str]) -> Path:
    """Write a page into the folder of a run, under its lock."""
    folder = RunFolder(Path(run))
    check_run(folder.path)
    with folder.writing("report"):
        folder.write(folder.path / name, page(read_run(run)))
    return folder.path / name


def card_markdown(run: Run) -> str:
    """Return the model card of a run as Markdown."""
    banks = list(figures.class_banks(run.ensemble, _CARD_PROMPTS))
    return render(
        "card.md.j2",
        run=run,
        ensemble=run.ensemble,
        composed=Composed.of(run.ensemble),
        results=run.results,
        task=run.results.task,
        # A JSON string is a Python string too, and hides line breaks and quotes.
        encoder_literal=json.dumps(run.results.encoder.id, ensure_ascii=False),
        methods=figures.method_rows(run.results),
        ours=run.results.method(OURS),
        transfers=figures.transfer_rows(run.results),
        banks=banks[:_CARD_CLASSES],
        banks_left=len(banks[_CARD_CLASSES:]),
    )

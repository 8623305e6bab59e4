"""``report.html``, a page that fetches nothing, and ``README.md``, the model card of a run."""

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from markupsafe import Markup

import promptboost
from promptboost.baselines.measures import OURS
from promptboost.errors import FileFormatError, RunError, SettingError
from promptboost.io import load_json, read_text
from promptboost.model import PromptEnsemble
from promptboost.model.explanation import Explanation
from promptboost.report import figures, svg
from promptboost.report.checks import run_checks
from promptboost.run.findings import SHOWN, Issues
from promptboost.run.results import Composed, Results
from promptboost.run.run_folder import RunFolder, public
from promptboost.run.versions import EDITS_FILE, Lineage

if TYPE_CHECKING:
    from jinja2 import Environment

# Only what is inside the file itself, and only pixels: an SVG can carry a script or an address.
_PIXELS = re.compile(r"data:image/(?:jpeg|png|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Run:
    """The content of a report or a card."""

    path: Path
    ensemble: PromptEnsemble
    results: Results
    settings: Mapping[str, Any]
    thumbnails: Mapping[str, str]
    explanations: Mapping[str, Explanation] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    issues: Issues | None = None  # None if they were not searched for

    @property
    def name(self) -> str:
        """The folder's name without its path: reports are passed on."""
        return RunFolder(self.path).home.resolve().name

    @property
    def shell_name(self) -> str:
        """The folder's name, quoted for a shell."""
        return shlex.quote(self.name)

    @property
    def is_conse(self) -> bool:
        """Whether the encoder is a ConSE one, not a CLIP model."""
        return self.results.encoder.id.startswith("conse:")

    @cached_property
    def is_edited(self) -> bool:
        """Whether the text was edited after the figures were measured."""
        measured = self.results.ensemble_fingerprint
        return measured is not None and not self.ensemble.has_fingerprint(measured)

    @property
    def measure_again(self) -> str:
        """The command that measures the text as it is now."""
        data = "--held-out" if self.lineage.edits else "DATA"
        return f"promptboost evaluate {self.shell_name} {data}"


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a run folder."""
    files = RunFolder(Path(path))
    return files.steady(lambda: _read_run(files))


def _check_run(folder: Path) -> None:
    """Raise unless the folder has the files that a report needs."""
    if not folder.is_dir():
        raise RunError(
            f"{folder} is not a run folder. To make one, type: promptboost fit DATA -o {folder}"
        )
    for name in ("ensemble.json", "metrics.json"):
        if not (folder / name).is_file():
            raise RunError(
                f"{folder} has no {name}: the fit was not finished. To finish it, repeat the "
                "promptboost fit command with --resume"
            )


def _read_run(files: RunFolder) -> Run:
    _check_run(files.path)
    ensemble = PromptEnsemble.load(files.ensemble_path)
    results = files.results
    return Run(
        path=files.path,
        ensemble=ensemble,
        # Earlier versions wrote down where the images lay.
        results=msgspec.structs.replace(results, task=results.task.public),
        settings=public(
            files.tables
            if files.settings_path.is_file()
            else {"settings": dict(ensemble.settings), "versions": dict(ensemble.versions)}
        ),
        thumbnails=_read_thumbnails(files.thumbnails_path),
        explanations=_read_explanations(files.explanations_path),
        lineage=Lineage.read(files.path) if (files.path / EDITS_FILE).exists() else Lineage(),
        issues=Issues.read(files.issues_path) if files.issues_path.is_file() else None,
    )


def _read_object(file: Path, values: str) -> Mapping[str, Any]:
    """Read a JSON object; a missing file is an empty one."""
    if not file.is_file():
        return {}
    record = load_json(read_text(file, error=FileFormatError), str(file))
    if not isinstance(record, Mapping):
        raise FileFormatError(f"{file}: must be an object of {values}, not {record!r:.60}")
    return record


def _read_thumbnails(file: Path) -> dict[str, str]:
    return {
        image: url
        for image, url in _read_object(file, "images").items()
        if isinstance(url, str) and _PIXELS.fullmatch(url)
    }


def _read_explanations(file: Path) -> dict[str, Explanation]:
    record = _read_object(file, "explanations")
    try:
        return {image: Explanation.from_record(why) for image, why in record.items()}
    except (SettingError, AttributeError) as error:
        raise FileFormatError(f"{file}: {error}") from error


def render(template: str, **values: Any) -> str:
    """Render a template of this package to text that UTF-8 can encode."""
    return figures.printable(_environment().get_template(template).render(**values))


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
        percent=svg.percent,
        number=figures.number,
        md=figures.escaped,
        among=figures.among,
        fenced=figures.fenced,
    )
    environment.globals.update(
        points=figures.points,
        count=figures.count,
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
    _check_run(folder.path)
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

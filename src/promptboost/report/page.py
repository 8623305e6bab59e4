"""``report.html``, a page without external resources, and ``README.md``, the model card of a run."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

import promptboost
from promptboost.baselines import OURS, TEXT, Answered, ClassResult, MethodResult
from promptboost.errors import FileFormatError, RunError, SettingError, count, few, percent
from promptboost.io import read_json
from promptboost.model import PromptEnsemble
from promptboost.model.prediction import TERMS, Explanation
from promptboost.report import svg
from promptboost.report.checks import run_checks
from promptboost.report.svg import (
    Line,
    Point,
    Reference,
    coverage_plot,
    reliability_plot,
    staged_curve,
    wilson,
)
from promptboost.run.findings import SHOWN, Issues
from promptboost.run.influence import Influence
from promptboost.run.results import Composed, HardImage, Results, TransferResult
from promptboost.run.run_folder import RunFolder, public
from promptboost.run.versions import EDITS_FILE, Lineage

if TYPE_CHECKING:
    from jinja2 import Environment

    from promptboost.model.classifier import PromptClassifier


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
    def title(self) -> str:
        """The name of the data set: of a benchmark, a folder or a manifest."""
        benchmark, _, _ = self.results.task.data.partition(":")
        return Path(benchmark).stem or self.name

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
        return measured is not None and measured != self.ensemble.fingerprint

    @property
    def measure_again(self) -> str:
        """The command that measures the current text."""
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
    ensemble = files.ensemble
    results = files.results
    return Run(
        path=files.path,
        ensemble=ensemble,
        results=results,
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
    record = read_json(file, error=FileFormatError)
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
    return svg.printable(_environment().get_template(template).render(**values))


# Names of the steps in `Results.timing`.
_STEPS = {
    "images_s": "reading and embedding images",
    "texts_s": "embedding prompts",
    "boost_s": "boosting",
    "total_s": "in all",
}
# How to use a classifier in Python, on cards.
_USAGE = """\
import promptboost

classifier = promptboost.from_pretrained(".")
print(classifier("image.jpg"))  # [{"label": …, "score": …}, …]"""


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
        percent=percent, number=svg.number, md=svg.escaped, few=few, fenced=svg.fenced
    )
    environment.globals.update(
        style=(Path(__file__).parent / "templates" / "style.css").read_text("utf-8").strip(),
        ours_name=OURS,
        text_name=TEXT,
        terms=TERMS,
        usage=_USAGE,
        steps=_STEPS,
        wilson=wilson,
        points=svg.points,
        count=count,
        bar=svg.bar,
        dumbbell=svg.dumbbell,
        strip=svg.strip,
        swatch=svg.swatch,
        # It escapes the text in it.
        figure=lambda explanation, most: Markup(explanation.html(most)),
    )
    return environment


def explanations_html(
    title: str,
    explanations: Sequence[Explanation],
    thumbnails: Mapping[str, str],
    most: int | None = TERMS,
) -> str:
    """Return a page with the figures of explanations, `most` terms in each, and thumbnails."""
    return render(
        "explanations.html.j2",
        title=title,
        explanations=explanations,
        thumbnails=thumbnails,
        most=most,
    )


CLASSES_SHOWN = 30
BANKS_OPEN = 8
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
    findings = [check for check in checks if check.answer.outcome == "found"]
    most = rows_per_class(len(run.ensemble.class_names))
    # The effects are those of the text that was measured.
    effects = () if run.is_edited else results.sentences
    banks = list(class_banks(run.ensemble, most, effects, results.examples))
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
        curves=curves(results),
        certainty=certainty(results),
        found=sorted(findings, key=lambda check: check.rule.severity != "issue"),
        quiet=[check for check in checks if check.answer.outcome != "found"],
        classes=sorted_classes(results),
        classes_shown=CLASSES_SHOWN,
        confusions=results.confusions[:CONFUSIONS_SHOWN],
        confusions_left=results.confusions[CONFUSIONS_SHOWN:],
        hardest=hard_rows(results),
        suspects=() if run.issues is None else run.issues.first(None)[:SHOWN],
        banks=banks,
        banks_open=BANKS_OPEN,
        banks_cut=any(bank.left_out for bank in banks),
        most=most,
        transfers=transfers_with_gain(results),
        alone=any(moved.accuracy.get(TEXT) is not None for moved in results.transfers),
        settings=setting_tables(run.settings),
    )


def write_card(run: str | os.PathLike[str]) -> Path:
    """Write the model card of a run into its folder, as ``README.md``; see :func:`write_report`."""
    return _write(run, "README.md", card_markdown)


def write_pages(run: Path) -> None:
    """Write the report and the model card of a run; see :func:`write_report`."""
    write_report(run)
    write_card(run)


def _write(run: str | os.PathLike[str], name: str, page: Callable[[Run], str]) -> Path:
    """Write a page into the folder of a run, under its lock."""
    folder = RunFolder(Path(run))
    _check_run(folder.path)
    with folder.writing("report"):
        folder.write(folder.path / name, page(read_run(run)))
    return folder.path / name


def card_markdown(run: Run) -> str:
    """Return the model card of a run as Markdown."""
    banks = list(class_banks(run.ensemble, _CARD_PROMPTS))
    return render(
        "card.md.j2",
        run=run,
        ensemble=run.ensemble,
        composed=Composed.of(run.ensemble),
        results=run.results,
        task=run.results.task,
        ours=run.results.method(OURS),
        transfers=transfers_with_gain(run.results),
        alone=any(moved.accuracy.get(TEXT) is not None for moved in run.results.transfers),
        banks=banks[:_CARD_CLASSES],
        banks_left=len(banks[_CARD_CLASSES:]),
    )


def classifier_card(classifier: "PromptClassifier") -> str:
    """Return a model card for a classifier without a run, as Markdown."""
    ensemble = classifier.ensemble
    banks = list(class_banks(ensemble, _CARD_PROMPTS))
    return render(
        "classifier.md.j2",
        ensemble=ensemble,
        encoders=" and ".join(encoder.id for encoder in ensemble.encoders) or "an unknown encoder",
        banks=banks[:_CARD_CLASSES],
        banks_left=len(banks[_CARD_CLASSES:]),
    )


# A row is about 600 bytes; a page should stay under three million.
_TOTAL_ROWS = 3000


class PromptRow(NamedTuple):
    """A prompt of a class, and the effect of removing it where that was measured."""

    text: str
    weight: float
    copies: int
    rounds: tuple[int, ...]
    pinned: bool
    influence: Influence | None = None
    example: str | None = None  # a training image

    @property
    def matters(self) -> bool:
        """Whether the prompt is shown unfolded."""
        return self.pinned or self.influence is None or self.influence.matters


class BankTable(NamedTuple):
    """The heaviest prompts of a class, and the number and weight of all that are left out."""

    class_name: str
    rows: list[PromptRow]
    prompts: int
    left_out: int
    weight_shown: float


def rows_per_class(n_classes: int) -> int:
    """Choose how many prompts of a class to show, so that a page of many classes stays usable."""
    return max(3, min(25, _TOTAL_ROWS // n_classes))


def class_banks(
    ensemble: PromptEnsemble,
    most: int,
    influences: Sequence[Influence] = (),
    examples: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[BankTable]:
    """Yield the heaviest prompts of every class."""
    effects = {(each.class_name, each.prompt): each for each in influences}
    for name in ensemble.class_names:
        weights = ensemble.prompts(name)
        heaviest = list(weights.items())[:most]
        rounds: dict[str, list[int]] = {prompt: [] for prompt, _ in heaviest}
        copies = dict.fromkeys(rounds, 0)
        for i, round_ in enumerate(ensemble.rounds, start=1):
            for prompt in rounds.keys() & round_.banks[name].keys():
                rounds[prompt].append(i)
                copies[prompt] += round_.banks[name][prompt]
        pinned = ensemble.pinned.get(name, ())
        images = (examples or {}).get(name, {})
        rows = [
            PromptRow(
                *(p, weight, copies[p], tuple(rounds[p]), p in pinned),
                influence=effects.get((name, p)),
                example=images.get(p),
            )
            for p, weight in heaviest
        ]
        shown = sum(weight for _, weight in heaviest)
        yield BankTable(name, rows, len(weights), len(weights) - len(rows), shown)


# The curve is drawn twice, and the style sheet shows the one that fits: shrunk text is unreadable.
_SIZES = {"wide": (900, 340), "narrow": (360, 280)}
_REFERENCES = {"zero-shot": ("zero-shot", "zero"), "logistic": ("logistic regression", "probe")}


def curves(results: Results) -> dict[str, Any]:
    """Draw the staged curve for wide and for narrow screens; empty with fewer than two stages.

    The legend has the style and the name of every line.
    """
    if len(results.staged) < 2:
        return {}
    lines = [Line("learning", "learn", [stage.learn_accuracy for stage in results.staged])]
    if results.held_out:
        lines.append(Line("boosted", "main", [stage.accuracy for stage in results.staged]))
    levels = [
        Reference(label, kind, value)
        for name, (label, kind) in _REFERENCES.items()
        if (value := results.measured(name)) is not None
    ]
    where = "held-out" if results.held_out else "training"
    others = "".join(f", {level.label} {percent(level.value)}" for level in levels)
    title = (
        f"Accuracy on {where} images against rounds: {percent(lines[-1].values[0])} after round 1, "
        f"{percent(lines[-1].values[-1])} after round {results.staged[-1].round}{others}."
    )
    drawn = {
        size: staged_curve(
            lines, levels, width=width, height=height, title=title, named=size == "wide"
        )
        for size, (width, height) in _SIZES.items()
    }
    legend = [(line.kind, line.label) for line in lines[::-1]]
    return {**drawn, "legend": legend + [(level.kind, level.label) for level in levels]}


# Accuracies of fewer answers are not drawn.
_FEWEST = 10


def certainty(results: Results) -> dict[str, Any]:
    """Draw how reliable probabilities are; empty without held-out images.

    Besides two charts, return the measures of the run and of its text alone, and the answers at each
    least probability.
    """
    ours, text = results.method(OURS), results.method(TEXT)
    if not results.held_out or ours is None or not ours.reliability or not ours.coverage:
        return {}
    text = text if text is not None and text.coverage_curve else None
    alone = {} if text is None else {a.min_probability: a for a in text.coverage}
    return {
        "method": ours,
        "text": text,
        "reliability": _reliability(ours),
        "coverage_curve": _coverage(ours, text),
        "rows": [(answered, alone.get(answered.min_probability)) for answered in ours.coverage],
    }


def _reliability(ours: MethodResult) -> Markup:
    bins = []
    for b in ours.reliability:
        span, few = wilson(b.accuracy, b.count), b.count < _FEWEST
        bins.append((Point(b.probability, b.accuracy, span, few=few), float(b.count)))
    return reliability_plot(
        bins,
        title="Accuracy against predicted probability, in percent.",
        description="; ".join(
            f"{percent(b.probability)} probable: {percent(b.accuracy)} right of {b.count}"
            for b in ours.reliability
        ),
    )


def _coverage(ours: MethodResult, text: MethodResult | None) -> Markup:
    def point(answered: Answered, name: str = "") -> Point:
        return Point(answered.coverage, answered.accuracy or 0.0, name=name)

    drawn = [*([("learn", text)] if text else []), ("main", ours)]
    lines = [
        (kind, [point(a) for a in method.coverage_curve if a.answered >= _FEWEST])
        for kind, method in drawn
    ]
    shown = [a for a in ours.coverage if a.answered >= _FEWEST]
    return coverage_plot(
        lines,
        [point(a, f"{a.min_probability:g}") for a in shown if a.min_probability],
        title="Accuracy against coverage, in percent.",
        description="; ".join(
            f"at {a.min_probability:g}: {percent(a.accuracy)} right on {percent(a.coverage)} of images"
            for a in shown
        ),
    )


def sorted_classes(results: Results) -> list[ClassResult]:
    """Return the classes, the least accurate first."""

    def order(row: ClassResult) -> tuple[bool, float, float, str]:
        boosted, zero_shot = row.accuracy.get(OURS), row.accuracy.get("zero-shot")
        return boosted is None, boosted or 0.0, zero_shot or 0.0, row.class_name

    return sorted(results.per_class, key=order)


def hard_rows(results: Results) -> list[tuple[str, HardImage]]:
    """Return images that are predicted wrongly or weigh more than the average, with that multiple."""
    n = max(1, results.task.learn_images)
    return [
        (f"{n * image.weight:.1f}" if n * image.weight >= 0.1 else "under 0.1", image)
        for image in results.hardest
        # Rounded as shown: after one round, half of all images weigh slightly more than the average.
        if round(n * image.weight, 1) > 1 or image.predicted != image.label
    ]


def transfers_with_gain(results: Results) -> list[tuple[TransferResult, float | None]]:
    """Compare the gain on each other encoder with the gain on the encoder of the fit."""
    # The gain of the text alone: residuals are not transferred.
    text = TEXT if results.method(TEXT) else OURS
    zero, boosted = results.measured("zero-shot"), results.measured(text)
    gain = None if zero is None or boosted is None or not results.held_out else boosted - zero
    rows = []
    for moved in results.transfers:
        there, share = moved.accuracy.get("zero-shot"), None
        after = moved.accuracy.get(TEXT, moved.accuracy.get(OURS))
        if gain is not None and gain > 0 and after is not None and there is not None:
            share = (after - there) / gain
        rows.append((moved, share))
    return rows


def setting_tables(
    tables: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield titled lists of names and values, in the order of the file."""
    for title, table in tables.items():
        if table:
            yield title, [(name, _written(value)) for name, value in table.items()]


def _written(value: object) -> str:
    if isinstance(value, list):
        # The names of a thousand classes are no setting anyone would read here.
        return few([_written(each) for each in value], most=30) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)

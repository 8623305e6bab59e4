"""How sure a run is: reliability and coverage on its page and card."""

import copy
import re

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from promptboost.baselines import MethodResult
from promptboost.report import write_card, write_report
from promptboost.report.svg import Point, coverage_plot, reliability_plot, wilson
from tests.report.page_tools import Page
from tests.report.run_tools import with_probabilities, without_held_out, write_run

SHARE = st.floats(0, 1)


@pytest.fixture
def metrics(fit):
    return with_probabilities(fit[1])


@pytest.fixture
def methods(metrics):
    """The figures of what answers, and of the text alone."""
    found = {row["name"]: msgspec.convert(row, MethodResult) for row in metrics["methods"]}
    return found["promptboost"], found["text"]


@pytest.fixture
def run(fit, metrics, tmp_path):
    return write_run(tmp_path / "run", fit[0], metrics)


def percent_of(share):
    return "–" if share is None else f"{100 * share:.1f}%"


def test_the_page_has_coverage_for_what_answers_and_for_the_text_alone(run, methods):
    page = Page(write_report(run).read_text(encoding="utf-8"))
    text = page.text("certainty")
    ours, alone = methods
    for one, other in zip(ours.coverage, alone.coverage, strict=True):
        least = f"{one.min_probability}" if one.min_probability else "any"
        shares = (one.coverage, one.accuracy, other.coverage, other.accuracy)
        assert " ".join([least, *map(percent_of, shares)]) in text
    said = f"at 0.5: {percent_of(ours.coverage[2].accuracy)} right on"
    assert said in text
    assert percent_of(ours.expected_calibration_error) in text
    assert percent_of(alone.expected_calibration_error) in text


def test_every_bin_is_in_the_table_with_its_interval(run, methods):
    text = Page(write_report(run).read_text(encoding="utf-8")).text("certainty")
    for one in methods[0].reliability:
        low, high = wilson(one.accuracy, one.count)
        row = f"{one.count} {percent_of(one.probability)} {percent_of(one.accuracy)} "
        assert row + f"{percent_of(low)} to {percent_of(high)}" in text


def test_drawings_say_what_they_show_to_those_who_cannot_see_them(run):
    html = write_report(run).read_text(encoding="utf-8")
    plots = re.findall(r"<svg class='curve plot'.*?</svg>", html, re.DOTALL)
    assert len(plots) == 2
    for plot in plots:
        assert "role='img'" in plot
        assert re.search(r"<title>[^<]{20,}</title><desc>[^<]{20,}</desc>", plot)
    assert plots[1].count("<polyline") == 2
    assert html.count('href="#certainty"') == 1


def test_without_a_residual_there_is_one_line_and_no_column_beside(fit, metrics, tmp_path):
    metrics["methods"] = [row for row in metrics["methods"] if row["name"] != "text"]
    html = write_report(write_run(tmp_path / "run", fit[0], metrics)).read_text(encoding="utf-8")
    section = html[html.index('id="certainty"') : html.index('id="composing"')]
    assert section.count("<polyline") == 1
    assert "text alone" not in section


def test_figures_of_before_and_runs_without_held_out_images_have_no_drawing(fit, metrics, tmp_path):
    old = copy.deepcopy(metrics)
    for row in old["methods"]:
        for name in ("coverage", "coverage_curve", "reliability"):
            row.pop(name, None)
    for number, figures in enumerate((old, without_held_out(metrics))):
        page = write_report(write_run(tmp_path / f"run{number}", fit[0], figures))
        assert "curve plot" not in page.read_text(encoding="utf-8")
    assert "calibration error" in (tmp_path / "run0/report.html").read_text(encoding="utf-8")


def test_the_card_says_what_is_right_at_some_probabilities(run, methods):
    card = write_card(run).read_text(encoding="utf-8").replace("\u202f", " ")
    one = methods[0].coverage[3]
    row = f"| 0.6 | {percent_of(one.coverage)} | {percent_of(one.accuracy)} |"
    assert row in card


@given(st.lists(st.tuples(SHARE, SHARE, st.integers(1, 50)), max_size=15))
def test_reliability_stays_inside_its_frame(drawn):
    bins = [(Point(x, y, wilson(y, n), few=n < 9), float(n)) for x, y, n in drawn]
    page = Page(reliability_plot(bins, title="<a>", description="&"))
    dots = page.named("circle")
    assert len(dots) == len(drawn)
    for (x, y, n), dot in zip(drawn, dots, strict=True):
        assert dot["class"] == ("few" if n < 9 else "main")
        assert float(dot["cx"]) == pytest.approx(44 + 302 * x, abs=0.06)
        assert float(dot["cy"]) == pytest.approx(14 + 276 * (1 - y), abs=0.06)
    for column in page.named("rect"):
        assert float(column["y"]) >= 14 + 276 - 41
        assert float(column["y"]) + float(column["height"]) == pytest.approx(290, abs=0.2)
    for line in page.named("line"):
        assert all(13 <= float(line[end]) <= 291 for end in ("y1", "y2"))


@given(
    st.lists(st.lists(st.tuples(SHARE, SHARE), min_size=1, max_size=9), max_size=2),
    st.lists(st.tuples(SHARE, SHARE), max_size=8),
)
def test_coverage_stays_inside_its_frame_and_names_do_not_collide(lines, marks):
    drawing = coverage_plot(
        [("main", [Point(*point) for point in sorted(line)]) for line in lines],
        [Point(*point, name="0.5") for point in marks],
        title="x",
        description="y",
    )
    page = Page(drawing)
    for line in page.named("polyline"):
        for place in line["points"].split():
            x, y = map(float, place.split(","))
            assert 43 <= x <= 347
            assert 13 <= y <= 291
    names = sorted(
        float(a["x"]) for a in page.named("text") if a.get("class", "").startswith("name")
    )
    assert (np.diff(names) >= 25).all()

import itertools
import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from promptboost.report.svg import (
    Line,
    Reference,
    bar,
    dumbbell,
    runs,
    spans,
    staged_curve,
    strip,
    wilson,
)
from tests.report.page_tools import Page

SHARE = st.floats(0, 1)
MAYBE = st.none() | SHARE


@given(MAYBE, MAYBE)
def test_small_drawings_stay_inside(before, after):
    for drawing in (bar(before, wilson(before, 30)), dumbbell(before, after)):
        Page(drawing)
        assert all(0 <= float(x) <= 100 for x in re.findall(r"'([-+.\de]+)%'", drawing))


def test_bar_and_dumbbell_show_what_they_are_given():
    assert "width='62.5%'" in bar(0.625)
    assert "fill" not in bar(None)
    assert "cx='25%'" in dumbbell(0.25, 0.75)
    assert "cx='75%'" in dumbbell(0.25, 0.75)
    assert "circle" not in dumbbell(None, None)


def test_attributes_are_escaped():
    assert "<" not in bar(0.5, kind="'><script>").split(">", 1)[1].replace("<rect", "").replace(
        "</svg>", ""
    )


@given(
    st.lists(MAYBE, min_size=1, max_size=60),
    st.lists(SHARE, max_size=3),
    st.sampled_from([(900, 340, True), (360, 280, False)]),
)
def test_curve_stays_inside_its_frame(values, levels, size):
    width, height, named = size
    references = [Reference(f"level {i}", "zero", v) for i, v in enumerate(levels)]
    line = Line("held out", "main", values)
    drawing = staged_curve([line], references, width=width, height=height, title="x", named=named)
    page = Page(drawing)
    for a in page.named("polyline"):
        for point in a["points"].split():
            x, y = map(float, point.split(","))
            assert 40 <= x <= width
            assert 10 <= y <= height - 38
    texts = [a for a in page.named("text") if a["class"].startswith("name")]
    places = sorted(float(a["y"]) for a in texts)
    assert all(b - a >= 16 for a, b in itertools.pairwise(places))
    assert all(0 <= y <= height for y in places)


def test_higher_is_higher_and_later_is_further_right():
    drawing = staged_curve([Line("a", "main", [0.2, 0.9])], [], width=400, height=200, title="x")
    (x1, y1), (x2, y2) = (
        map(float, p.split(",")) for p in Page(drawing).named("polyline")[0]["points"].split()
    )
    assert x2 > x1
    assert y2 < y1


@given(st.sets(st.integers(1, 60), min_size=1))
def test_runs_hold_the_same_numbers(numbers):
    found = runs(sorted(numbers))
    assert {n for low, high in found for n in range(low, high + 1)} == numbers
    assert all(b[0] > a[1] + 1 for a, b in itertools.pairwise(found))
    Page(strip(sorted(numbers), 60))
    assert spans(sorted(numbers), most=99).count(",") == len(found) - 1


@pytest.mark.parametrize(("share", "n"), [(0.0, 5), (1.0, 5), (0.5, 1), (0.3, 1000)])
def test_interval_holds_the_share(share, n):
    low, high = wilson(share, n)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
    assert wilson(None, n) is None
    assert wilson(share, 0) is None

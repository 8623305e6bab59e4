import csv
import io
import itertools
import xml.etree.ElementTree as ET

import pytest

from promptboost.experiments.figure import accuracy_figure
from promptboost.experiments.summary import COLUMNS, best_at, curves, markdown, to_csv


def line(method, accuracy, shots=1, seed=1, on="here", **more):
    return {
        "method": method,
        "encoder": "here",
        "on": on,
        "via": "" if on == "here" else "text",
        "shots": shots,
        "seed": seed,
        "accuracy": accuracy,
        "fit_s": 2.0,
        "predict_ms": None,
        **more,
    }


LINES = [
    line("a", 0.5, seed=1, predict_ms=12.3),
    line("a", 0.7, seed=2),
    line("a", 0.9, shots=4),
    line("b", 0.6, seed=1),
    line("b", 0.6, seed=2),
    line("a", 0.4, on="there"),
]


def test_means_and_deviations_by_shots():
    a, b = curves(LINES, "here")
    assert a.at(1) == pytest.approx((0.6, 0.02**0.5))
    assert a.at(4) == pytest.approx((0.9, 0.0))
    assert b.at(4) is None
    assert a.predict_ms == 12.3
    assert b.predict_ms is None
    (there,) = curves(LINES, "there")
    assert (there.via, there.means) == ("text", (0.4,))


def test_the_best_is_marked_and_level_ones_both_are():
    found = curves(LINES, "here")
    assert best_at(found, 1) == {"a", "b"}
    assert best_at(found, 4) == {"a"}
    text = markdown(found, [1, 4])
    assert "| a | **60.0 ± 14.1** | **90.0 ± 0.0** | 2.0 s | 12 ms |" in text
    assert "| b | **60.0 ± 0.0** | – | 2.0 s | – |" in text


def test_a_name_cannot_break_the_table():
    text = markdown(curves([line("zero-shot?template=a|{}", 0.5)], "here"), [1])
    assert {row.count("|") for row in text.splitlines()} == {5}


def test_csv_has_one_line_a_result():
    rows = list(csv.DictReader(io.StringIO(to_csv(LINES))))
    assert len(rows) == len(LINES)
    assert tuple(rows[0]) == COLUMNS
    assert (rows[2]["shots"], rows[2]["accuracy"]) == ("4", "0.9")


def test_the_figure_is_sound_and_escapes_names():
    names = [f"method {i} <b>&" for i in range(17)]
    lines = [line(n, 0.5 + i / 1000, shots=k) for i, n in enumerate(names) for k in (1, 4)]
    drawing = accuracy_figure(
        [("on <here>", curves(lines, "here")), ("on there", curves(LINES, "there"))], [1, 4]
    )
    root = ET.fromstring(drawing)
    texts = root.iter("{http://www.w3.org/2000/svg}text")
    labels = [node for node in texts if "method" in (node.text or "")]
    assert len(labels) == 17
    heights = sorted(float(node.attrib["y"]) for node in labels)
    assert min(b - a for a, b in itertools.pairwise(heights)) > 13  # none on another
    assert 0 < heights[0] < heights[-1] < float(root.attrib["height"])
    looks = {
        (node.attrib["stroke"], node.attrib["stroke-dasharray"])
        for node in root.iter("{http://www.w3.org/2000/svg}polyline")
    }
    assert len(looks) >= 17  # each line can be told from the others

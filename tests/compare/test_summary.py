import csv
import dataclasses
import io
import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from promptboost.compare.summary import (
    COLUMNS,
    accuracy_figure,
    best_at,
    curves,
    markdown,
    to_csv,
    with_times,
)


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
    # One draw has no deviation; two that agree have one of zero.
    assert "| a | **60.0 ± 14.1** | **90.0** | 2.0 s | 12 ms |" in text
    assert "| b | **60.0 ± 0.0** | – | 2.0 s | – |" in text


def test_a_name_cannot_break_the_table():
    text = markdown(curves([line("zero-shot?template=a|{}", 0.5)], "here"), [1])
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in text.splitlines()} == {5}


def test_what_was_learned_again_does_not_pass_for_carried():
    lines = [
        line("a", 0.4, on="there"),
        line("b", 0.5, on="there", via="refit"),
        line("c", 0.6, on="there", via="emulated", image_passes=3),
    ]
    found = curves(lines, "there")
    a, b, c = markdown(found, [1]).splitlines()[2:]
    assert "its text is embedded again" in a
    assert "fitted again on the images" in b
    assert "both encoders embed each image, 3 passes" in c
    # Carrying is no fit, and takes what predicting takes.
    assert ("2.0 s" in a, "2.0 s" in b, "2.0 s" in c) == (False, True, False)
    drawing = accuracy_figure([("there", found)], [1])
    assert "40.0 a<" in drawing
    assert "50.0 b (fitted again)<" in drawing
    assert "60.0 c + EFT<" in drawing


def test_the_time_of_a_image_is_found_where_it_was_measured():
    first, second, other = line("a", 0.5, predict_ms=7.0), line("a", 0.6, shots=4), line("b", 0.5)
    shown = with_times([second, other], [first, second, other])
    assert [one["predict_ms"] for one in shown] == [7.0, None]
    assert second["predict_ms"] is None  # what is kept stays as it is
    assert with_times([first, second], [first, second]) == [first, second]


def test_csv_has_one_line_a_result():
    rows = list(csv.DictReader(io.StringIO(to_csv(LINES, COLUMNS))))
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


def test_many_methods_with_long_names_stay_inside_and_apart():
    names = [f"tpb?rounds={i}&views_per_round=0&max_copies=1&temperature=2" for i in range(40)]
    lines = [line(name, 0.5) for name in names]
    found = curves(lines, "here")
    root = ET.fromstring(accuracy_figure([("one", found), ("two", found)], [1]))
    svg = "{http://www.w3.org/2000/svg}"
    labels = [node for node in root.iter(f"{svg}text") if "tpb" in (node.text or "")]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for part in (labels[:40], labels[40:]):
        places = [float(node.attrib["y"]) for node in part]
        assert 30 < min(places) < max(places) < height  # below the title
        assert min(b - a for a, b in itertools.pairwise(places)) > 13
    for number, node in enumerate(labels):
        # A wide sans-serif font at 12 px has about 7 px a letter.
        end = float(node.attrib["x"]) + 7 * len(node.text)
        assert end < width * (1 if number >= 40 else 0.5)
    assert len({node.text for node in labels}) == 40  # shortened, but not to the same
    samples = [n for n in root.iter(f"{svg}line") if "stroke-dasharray" in n.attrib]
    assert len(samples) == 80  # the dashes tell which of two blue lines is meant


def test_a_heading_is_not_cut_and_a_line_beside_another_has_its_color():
    ours = curves([line("tpb", 0.5), line("tpb", 0.6, shots=4)], "here")[0]
    theirs = dataclasses.replace(ours, method="tpb, the paper", belongs_to="tpb")
    heading = [
        "A title that is far longer than the panel of a chart with a single line in it " * 2,
        "b",
    ]
    panels = [
        ("a panel with a title that is longer than the panel itself by some words", [ours, theirs])
    ]
    root = ET.fromstring(accuracy_figure(panels, [1, 4], "rounds", heading))
    svg = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{svg}title").text == heading[0]
    width = float(root.attrib["width"])
    for node in root.iter(f"{svg}text"):
        if node.attrib["class"] in ("", "title"):
            assert float(node.attrib["x"]) + 7 * len(node.text) < width
    one, other = root.iter(f"{svg}polyline")
    assert one.attrib["stroke"] == other.attrib["stroke"]
    assert (one.attrib["stroke-dasharray"], other.attrib["stroke-dasharray"]) == ("", "5 3")
    shift = float(root.find(f"{svg}g").attrib["transform"].removesuffix(")").split()[-1])
    assert shift > max(float(node.attrib["y"]) for node in root.findall(f"{svg}text")) - 22

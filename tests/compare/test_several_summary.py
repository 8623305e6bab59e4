"""The tables of the benchmark of several encoders: what is kept, and what encoders never seen gain."""

import pytest

pytest.importorskip("onnxruntime", reason="needs the extra offline")

from benchmarks.several import ENCODERS, SETTINGS, UNSEEN, Figure, kept, means, summary, table

TWO, THREE = SETTINGS[-2:]


def figures(sets=("a",)):
    """Zero-shot has 0.4 everywhere; alone 0.6 at home, else 0.45; two 0.56 at home; three 0.5."""
    for data in sets:
        for seed, shift in ((1, -0.02), (2, 0.02)):
            for names in ((), *SETTINGS):
                for encoder in ENCODERS:
                    at_home = {0: 0.4, 1: 0.6, 2: 0.56, 3: 0.5}[len(names)]
                    away = {0: 0.4, 1: 0.45, 2: 0.48, 3: 0.47}[len(names)]
                    value = (at_home if encoder in names else away) + shift
                    yield Figure(data, "gradient", 4, seed, names, encoder, value)


def test_what_is_kept_is_a_share_of_the_gain_of_a_text_learned_there_alone():
    found = means(figures())
    assert found["a", "gradient", 4, TWO, TWO[0]] == pytest.approx(56)
    for encoder in TWO:
        assert kept(found, "a", "gradient", 4, TWO, encoder) == pytest.approx(0.8)
    for encoder in THREE:
        assert kept(found, "a", "gradient", 4, THREE, encoder) == pytest.approx(0.5)


def test_the_summary_has_a_line_for_each_set_and_one_for_their_mean():
    lines = summary(means(figures(("a", "b")))).splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["a", "b", "mean of 2 sets"]
    for line in lines:
        assert line.endswith("| 4 | 80 %, 80 % | 50 %, 50 %, 50 % | 40.0 | 45.0 | 48.0 | 47.0 |")
    partly = [one for one in figures(("a", "b")) if (one.data, one.learned_on) != ("b", THREE)]
    (line,) = summary(means(partly)).splitlines()[2:]
    assert line.startswith("| a |")  # what is not finished is no part of a mean


def test_what_was_not_learned_on_is_in_brackets():
    lines = table(means(figures())).splitlines()
    assert len(lines) == 2 + 1 + len(SETTINGS)
    both = next(line for line in lines if "lite0/L6 + lite2/L3 |" in line)
    assert both.count("56.0") == 2
    assert both.count("(48.0)") == 1 + len(UNSEEN)

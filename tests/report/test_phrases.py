import pytest

from promptboost.cli.output import percent as terminal_percent
from promptboost.report.figures import among, count, escaped, fenced, number, points, printable
from promptboost.report.svg import percent


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (percent(0.8342), "83.4\u202f%"),
        (percent(None), "–"),
        (terminal_percent(0.4337), "43.4 %"),
        (terminal_percent(None), "–"),
        (points(0.5, 0.625), "+12.5"),
        (points(0.5, 0.4), "−10.0"),
        (points(0.5, 0.5), "0.0"),
        (points(None, 0.5), "–"),
        (number(12345), "12\u202f345"),
        (number(0.123456), "0.123"),
        (number(3.0), "3"),
        (number(None), "–"),
        (count(1, "class", "classes"), "1 class"),
        (count(20, "class", "classes"), "20 classes"),
        (count(2, "round"), "2 rounds"),
        (among(["cat", "dog"]), "cat, dog"),
        (among(["a", "b", "c", "d"], most=2), "a, b and 2 more"),
        (printable("caf\udce9.jpg"), "caf\ufffd.jpg"),
        (
            escaped("a *big* <b>cat</b>\n| see http://x.y"),
            "a \\*big\\* \\<b\\>cat\\</b\\> \\| see http:\\//x.y",
        ),
        (fenced("ls", "console"), "```console\nls\n```"),
    ],
)
def test_figures_and_text_as_pages_write_them(written, text):
    assert written == text

import pytest

from promptboost.errors import percent
from promptboost.report.svg import escaped, fenced, number, points, printable


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (percent(0.8342), "83.4%"),
        (percent(None), "–"),
        (points(0.5, 0.625), "+12.5"),
        (points(0.5, 0.4), "−10.0"),
        (points(0.5, 0.5), "0.0"),
        (points(None, 0.5), "–"),
        (number(12345), "12,345"),
        (number(0.123456), "0.123"),
        (number(3.0), "3"),
        (number(None), "–"),
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

"""The report in a real browser: no complaint on the console, and what matters can be seen."""

import re
import shutil
import subprocess

import pytest

from promptboost.report import write_report
from tests.report.odd_runs import hostile_run
from tests.report.page_tools import Page
from tests.report.run_tools import with_probabilities, write_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
]

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


class ConsoleError(Exception):
    pass


def visit(file, tmp_path, *flags):
    """Load a page and return what it printed; fail if the console has anything to say."""
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [BROWSER, *FLAGS, profile, *flags, file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    complaints = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    if complaints:
        raise ConsoleError(complaints)
    return done.stdout


def pixels(file, tmp_path, *, size, dark=False):
    from PIL import Image

    shot = tmp_path / "shot.png"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    width, height = size
    visit(file, tmp_path, f"--screenshot={shot}", f"--window-size={width},{height}", scheme)
    with Image.open(shot) as image:
        return image.convert("RGB")


def with_probe(file, tmp_path, script):
    """A copy of the page with a script of ours that writes what it measured into the title."""
    text = file.read_text(encoding="utf-8")
    text = re.sub(r"<meta http-equiv=.*?>", "", text, count=1)
    copy = tmp_path / "probed.html"
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return copy


def measured(file, tmp_path, script, size):
    copy = with_probe(file, tmp_path, f"document.title = JSON.stringify({script})")
    dom = visit(copy, tmp_path, "--dump-dom", f"--window-size={size[0]},{size[1]}")
    return re.search(r"<title>(.*?)</title>", dom)[1]


def test_the_page_loads_without_complaint(emoji_run, tmp_path):
    dom = visit(write_report(emoji_run), tmp_path, "--dump-dom")
    page = Page(re.sub(r"^<!DOCTYPE html>", "", dom))
    sections = {"comparison", "curve", "checks", "classes", "confusions", "hardest", "banks"}
    assert sections <= set(page.ids)


def test_a_complaint_would_be_noticed(emoji_run, tmp_path):
    copy = with_probe(write_report(emoji_run), tmp_path, "console.error('noticed')")
    with pytest.raises(ConsoleError, match="noticed"):
        visit(copy, tmp_path, "--dump-dom")


def test_no_script_could_run(emoji_run, tmp_path):
    file = write_report(emoji_run)
    copy = tmp_path / "forged.html"
    forged = "<script>document.title = 'ran'</script></body>"
    text = file.read_text(encoding="utf-8").replace("</body>", forged)
    copy.write_text(text, encoding="utf-8")
    with pytest.raises(ConsoleError, match="Content Security Policy"):
        visit(copy, tmp_path, "--dump-dom")


def test_hostile_text_loads_without_complaint(tmp_path):
    dom = visit(write_report(hostile_run(tmp_path / "run")), tmp_path, "--dump-dom")
    assert "<script" not in dom


@pytest.mark.parametrize("width", [1200, 600])
def test_key_elements_are_visible_and_nothing_is_cut_off(emoji_run, tmp_path, width):
    seen = """{
      hidden: ["#headline", "#comparison table", "#curve figure", "#checks", "#classes table",
               "#confusions img", "#hardest img", "#banks details[open] td", "#transfer table"]
        .filter(q => { const b = document.querySelector(q).getBoundingClientRect();
                       return !(b.width > 8 && b.height > 8); }),
      curves: [...document.querySelectorAll("svg[viewBox].curve")]
        .filter(e => e.getBoundingClientRect().width > 200).length,
      wider: document.documentElement.scrollWidth > innerWidth,
      narrow: innerWidth <= 620 }"""
    found = measured(write_report(emoji_run), tmp_path, seen, (width, 900))
    narrow = "true" if width <= 620 else "false"
    assert found == f'{{"hidden":[],"curves":1,"wider":false,"narrow":{narrow}}}'


@pytest.mark.parametrize("width", [1200, 600])
def test_how_sure_it_is_can_be_seen(fit, tmp_path, width):
    run = write_run(tmp_path / "run", fit[0], with_probabilities(fit[1]))
    seen = """{
      plots: [...document.querySelectorAll("#certainty svg.plot")].map(e => e.getBoundingClientRect())
        .filter(b => b.width > 200 && b.width < 500 && b.height > 200).length,
      beside: new Set([...document.querySelectorAll("#certainty svg.plot")]
        .map(e => Math.round(e.getBoundingClientRect().top))).size === 1,
      colors: ["circle.main", "line.span", "rect.count"]
        .filter(q => { const s = getComputedStyle(document.querySelector("#certainty " + q));
                       return s.fill === "rgb(0, 0, 0)" && s.stroke === "none"; }),
      wider: document.documentElement.scrollWidth > innerWidth }"""
    found = measured(write_report(run), tmp_path, seen, (width, 900))
    beside = "true" if width > 620 else "false"
    assert found == f'{{"plots":2,"beside":{beside},"colors":[],"wider":false}}'


def test_light_and_dark(emoji_run, tmp_path):
    file = write_report(emoji_run)
    light = pixels(file, tmp_path, size=(800, 600))
    dark = pixels(file, tmp_path, size=(800, 600), dark=True)
    assert min(light.getpixel((2, 2))) > 230
    assert max(dark.getpixel((2, 2))) < 50
    for image in (light, dark):
        assert len(image.getcolors(1 << 20)) > 50  # text, bars and rules were drawn


def test_colors_have_contrast(emoji_run):
    text = write_report(emoji_run).read_text(encoding="utf-8")
    for scheme in re.findall(r":root \{(.*?)\}", text, flags=re.S):
        color = dict(re.findall(r"--([\w-]+): (#\w{6})", scheme))
        for front, back in [
            ("ink", "paper"),
            ("soft", "paper"),
            ("accent", "paper"),
            ("ink", "wash"),
            ("ink", "track"),
            ("on-accent", "accent"),
        ]:
            assert contrast(color[front], color[back]) >= 4.5, (front, back)
        assert contrast(color["grey"], color["track"]) >= 2


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

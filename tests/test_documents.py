"""What the documents name is there. What they show is run by ``test_pages``, the site by ``test_site``."""

import re
from pathlib import Path

import pytest

from tests.beside import PARTS, needs_beside

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "docs/how-to/edit.md"])
def test_images_are_there_in_both_manners_and_small(name):
    page = ROOT / name
    named = re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(named) == 2
    for name in named:
        assert 10_000 < (page.parent / name).stat().st_size < 150_000


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_figures_in_readme_are_those_of_the_results():
    """A figure is measured once; README repeats it."""
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    table = README[README.index("| shots |") :].split("\n\n")[0]
    rows = [re.findall(r"\d\d\.\d", line) for line in table.splitlines()[2:]]
    assert [len(row) for row in rows] == [5] * 6
    for row in rows:
        assert all(figure in pages for figure in row), row


def test_targets_in_readme_and_contributing_are_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake (\w+)(?=`|\s+#)", text))
    assert targets >= {"demo", "test", "fuzz"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_in_contributing_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = text[text.index("## Read the core") : text.index("## Rules")]
    files = re.findall(r"`([\w/]+\.py)`", walk)
    assert len(files) > 20
    assert [name for name in files if not (ROOT / "src" / "promptboost" / name).is_file()] == []
    for name in re.findall(r"\((docs/[\w/-]+\.md)\)", README + text):
        assert (ROOT / name).is_file(), name


def test_pages_with_accuracies_of_conse_encoders_say_that_they_are_not_clip():
    silent = []
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        shown = re.search(r"\d\d\.\d ?%|\| \**\d\d\.\d\**(?: [±/][^|]*)? \|", text)
        if (
            shown
            and re.search("conse", text, re.IGNORECASE)
            and not re.search(r"not\**\s+CLIP", text)
        ):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    """Those between pages of the site are followed by ``test_site``."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for place, section in re.findall(r"\]\((?!https?:)([^)#]+)(?:#([^)]+))?\)", text):
        assert (ROOT / place).exists(), place
        if section:
            titles = re.findall(
                r"^#+ (.+)$", (ROOT / place).read_text(encoding="utf-8"), re.MULTILINE
            )
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert section in slugs, f"{place} has no section {section}"


@needs_beside
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_what_is_beside_the_repository_is_whole(part):
    """Tests that read it would be about nothing if it were empty."""
    pattern, least = PARTS[part]
    assert sum(1 for _ in part.glob(pattern)) >= least, f"{part} lacks files {pattern}"

"""The site is built without a warning, and every link in it leads somewhere."""

import inspect
import re
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]


class _Page(HTMLParser):
    """The links of a page, and the places in it that can be linked."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places.update(filter(None, (given.get("id"), given.get("name"))))
        key = {"a": "href", "img": "src", "link": "href", "script": "src", "source": "srcset"}.get(
            tag
        )
        if key and given.get(key):
            self.links.append(given[key])


def _written(site):
    return [path for path in site.rglob("*.html") if "_static" not in path.parts]


def test_every_link_leads_somewhere(site):
    pages = {path: _Page(path) for path in _written(site)}
    assert len(pages) > 30
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not target.exists():
                broken.append(f"{path.relative_to(site)} → {link}")
            elif place and target in pages and place not in pages[target].places:
                broken.append(f"{path.relative_to(site)} → {link} (no such section)")
    assert not broken, "\n".join(broken)


def test_nothing_is_loaded_from_elsewhere(site):
    """A page that fetches from another server tells that server who reads it."""
    for path in _written(site):
        text = path.read_text(encoding="utf-8")
        assert '<script src="http' not in text, path
        assert 'rel="stylesheet" href="http' not in text, path


def test_facts_of_the_code_are_on_their_pages(site):
    from promptboost.cli import _COMMANDS
    from promptboost.pool.lint import RULES as POOL_RULES
    from promptboost.report.checks import RULES

    commands = (site / "reference/commands.html").read_text(encoding="utf-8")
    assert [name for name in _COMMANDS if f'id="{name}"' not in commands] == []
    checks = (site / "reference/checks.html").read_text(encoding="utf-8")
    assert [rule.code for rule in (*RULES, *POOL_RULES) if rule.code not in checks] == []
    assert "–json" not in commands  # an option that cannot be copied


def test_the_reference_has_every_public_class_and_function(site):
    written = {path.stem: _Page(path) for path in (site / "reference/api").glob("*.html")}
    assert len(written) > 10
    there = {place.rpartition(".")[2] for page in written.values() for place in page.places}
    for stem in written:
        module = import_module("promptboost" if stem == "promptboost" else f"promptboost.{stem}")
        public = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
        missing = [
            name
            for name, thing in public.items()
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and name not in there
        ]
        assert missing == [], stem
        # A property whose sentence was taken for its type, up to a colon.
        assert ">Type<" not in (site / f"reference/api/{stem}.html").read_text("utf-8"), stem


def test_charts_show_numbers_that_the_pages_have():
    """Data of a chart is measured, and stands in a table beside it."""
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    for file in (ROOT / "docs/figures/data").glob("*.csv"):
        numbers = set(re.findall(r"\b\d+\.\d\b", file.read_text(encoding="utf-8")))
        assert numbers, file.name
        assert {number for number in numbers if number not in pages} == set(), file.name

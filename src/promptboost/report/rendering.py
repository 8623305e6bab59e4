"""Templates, with everything escaped unless it was made here."""

from functools import cache
from typing import TYPE_CHECKING, Any

from promptboost.report import svg, words
from promptboost.report.curve import swatch
from promptboost.report.markdown import fenced, plain

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["render"]


def render(template: str, **values: Any) -> str:
    """Fill a template of this package; the result can be written as UTF-8."""
    return words.printable(_environment().get_template(template).render(**values))


@cache
def _environment() -> "Environment":
    # A fit that writes no report should not wait for jinja2.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("promptboost.report"),
        # Markdown has its own marks and its own filter; all else is HTML.
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        percent=words.percent, number=words.number, md=plain, among=words.among, fenced=fenced
    )
    environment.globals.update(
        points=words.points,
        count=words.count,
        bar=svg.bar,
        dumbbell=svg.dumbbell,
        strip=svg.strip,
        swatch=swatch,
    )
    return environment

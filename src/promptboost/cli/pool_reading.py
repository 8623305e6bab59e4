"""What ``promptboost pool`` reads: sources of sentences, and the classes they are about."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from promptboost.cli.output import Command

if TYPE_CHECKING:
    from promptboost.pool import Meeting

__all__ = ["Place", "meetings_of", "meets", "reads"]


class Place(NamedTuple):
    """A file or folder of sentences, and the format it is said to have."""

    path: Path
    kind: str | None


class _PlaceType(click.ParamType[Place]):
    name = "[KIND=]PATH"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        """Take ``kind=path`` apart, unless there is a file of that very name."""
        from promptboost.pool import KINDS

        text = str(value)
        kind, equals, path = text.partition("=")
        if equals and kind in KINDS and not Path(text).exists():
            return Place(Path(path), kind)
        return Place(Path(text), None)


def reads(function: Command) -> Command:
    """Give a command the options about the format of what it reads."""
    options = [
        click.option("--kind", help="Format of the sources without KIND=. Default: recognised."),
        click.option("--dataset", help="Which dataset of a file that holds several."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def meets(function: Command) -> Command:
    """Give a command sources and classes."""
    options = [
        click.argument(
            "places", nargs=-1, required=True, type=_PlaceType(), metavar="[KIND=]SOURCES..."
        ),
        click.option(
            "--classes",
            required=True,
            help="The classes: pictures as for fit, or a file of names (a line each, or JSON).",
        ),
        click.option(
            "--synonyms",
            type=click.Path(path_type=Path),
            help='Other names of classes: {"class": ["other name", …], …} in a JSON file.',
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return reads(function)


def meetings_of(
    places: tuple[Place, ...],
    classes: str,
    synonyms: Path | None,
    kind: str | None,
    dataset: str | None,
) -> tuple[tuple[str, ...], list["Meeting"]]:
    """Read sources and classes, and bring their names together."""
    from promptboost.pool import meet, read_class_names, read_sources, read_synonyms

    names = read_class_names(classes)
    if names is None:
        from promptboost.data import load_data

        names = load_data(classes, check=False, progress=False).class_names
    others = read_synonyms(synonyms) if synonyms else None
    read = [
        source
        for place in places
        for source in read_sources(place.path, place.kind or kind, dataset=dataset)
    ]
    return names, [meet(source, names, others) for source in read]

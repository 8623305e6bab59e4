"""The files of a comparison: CSV, a page of tables, a figure."""

from collections.abc import Sequence
from pathlib import Path

from promptboost.experiments.compare import Compared
from promptboost.experiments.figure import accuracy_figure
from promptboost.experiments.request import CompareRequest
from promptboost.experiments.summary import curves, markdown, to_csv
from promptboost.files import write_text

__all__ = ["write_results"]


def write_results(request: CompareRequest, found: Compared) -> list[Path]:
    """Write what a comparison has found into its folder.

    Returns
    -------
    list of Path
        ``results.csv``, ``results.md`` and ``accuracy.svg``; nothing if there are no results.
    """
    if not found.lines:
        return []
    encoders = list(dict.fromkeys(line["on"] for line in found.lines))
    panels = []
    page = [f"# {request.source}\n"]
    for on in encoders:
        here = curves(found.lines, on)
        title = f"on {on}" if not here[0].via else f"carried from {request.encoder} to {on}"
        panels.append((title, here))
        page.append(f"## Accuracy {title}\n\n{markdown(here, request.shots)}\n")
    page.append(
        f"Per cent, {_spread(request.seeds)}; the best of each column is bold. Time of a fit at the "
        "most shots, with pictures embedded already; time of a picture from file to answer.\n"
    )
    if found.failed:
        page.append("Left out:\n\n" + "\n".join(f"- {line}" for line in found.failed) + "\n")
    files = {
        "results.csv": to_csv(found.lines),
        "results.md": "\n".join(page),
        "accuracy.svg": accuracy_figure(panels, request.shots),
    }
    for name, text in files.items():
        write_text(request.out / name, text)
    return [request.out / name for name in files]


def _spread(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"of the draw {seeds[0]} alone"
    return f"mean ± standard deviation over the draws {', '.join(map(str, seeds))}"

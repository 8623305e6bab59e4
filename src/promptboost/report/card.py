"""``README.md``: the model card that goes with an ensemble wherever it goes."""

import json
import os
from pathlib import Path

from promptboost.evaluation.measures import OURS
from promptboost.files import write_text
from promptboost.model.provenance import Composed
from promptboost.report import figures
from promptboost.report.figures import class_banks
from promptboost.report.page import render
from promptboost.report.run import Run, read_run

PROMPTS_SHOWN = 3
CLASSES_SHOWN = 50


def write_card(run: str | os.PathLike[str]) -> Path:
    """Write the model card of a run into its folder.

    Parameters
    ----------
    run : path-like
        A run folder, with ``ensemble.json`` and ``metrics.json`` at least.

    Returns
    -------
    pathlib.Path
        The file ``README.md``, whole or, if anything is wrong, as it was before.

    Raises
    ------
    RunError
        If it is not a run folder, or the fit was not finished.
    FileFormatError
        If one of its files cannot be understood.

    Examples
    --------
    >>> write_card("no-such-run")
    Traceback (most recent call last):
    promptboost.errors.RunError: no-such-run is not a run folder. To make one, type: \
promptboost fit DATA -o no-such-run
    """
    file = Path(run) / "README.md"
    write_text(file, card_markdown(read_run(run)))
    return file


def card_markdown(run: Run) -> str:
    """Return the model card of a run as Markdown."""
    banks = list(class_banks(run.ensemble, PROMPTS_SHOWN))
    return render(
        "card.md.j2",
        run=run,
        ensemble=run.ensemble,
        composed=Composed.of(run.ensemble),
        results=run.results,
        task=run.results.task,
        # A JSON string is a Python string too, and hides line breaks and quotes.
        encoder_literal=json.dumps(run.results.encoder.id, ensure_ascii=False),
        methods=figures.method_rows(run.results),
        ours=run.results.method(OURS),
        transfers=figures.transfer_rows(run.results),
        banks=banks[:CLASSES_SHOWN],
        banks_left=len(banks[CLASSES_SHOWN:]),
    )

"""HTML of an ensemble in a notebook: its classes, each with its heaviest sentences."""

from html import escape
from typing import TYPE_CHECKING

from promptboost.errors import count

if TYPE_CHECKING:
    from promptboost.model.ensemble import PromptEnsemble

#: Largest number of classes and sentences shown, and of classes open at first.
CLASSES, SENTENCES, OPEN = 24, 6, 3

# Text and lines have the notebook's own colors, light or dark.
_CARD = "max-width:52rem;font:14px/1.45 system-ui,sans-serif"
_TABLE = (
    "border-collapse:collapse;margin:.1em 0 .4em 1em;background:none;color:inherit;font:inherit"
)
_CELL = "padding:1px 8px;text-align:left;border:0;vertical-align:top;background:none"
_NUMBER = f"{_CELL};text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap"
_FAINT = "opacity:.7"


def sizes(ensemble: "PromptEnsemble") -> str:
    """Return the numbers of classes, rounds and sentences.

    Examples
    --------
    >>> from promptboost.model import PromptEnsemble, Round
    >>> banks = {"cat": {"a cat": 1}, "dog": {"a dog": 1, "a hound": 1}}
    >>> sizes(PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.1, 0.3),)))
    '2 classes, 1 round, 3 sentences'
    """
    return (
        f"{count(len(ensemble.class_names), 'class', 'classes')}, {count(len(ensemble), 'round')}, "
        f"{count(ensemble.n_prompts, 'sentence')}"
    )


def card(ensemble: "PromptEnsemble", kind: str, encoder: object) -> str:
    """Return an ensemble as HTML: a summary, and its classes to open.

    Parameters
    ----------
    ensemble : PromptEnsemble
        The ensemble.
    kind : str
        The title, such as ``"PromptEnsemble"``.
    encoder : object
        The name of the encoder or encoders; None where there is none.

    Examples
    --------
    >>> from promptboost.model import PromptEnsemble, Round
    >>> banks = {"<b>": {"a cat & a hat": 1}, "dog": {"a dog": 1}}
    >>> html = card(PromptEnsemble(("<b>", "dog"), (Round("a {}", banks, 0.1, 0.3),)), "Text", None)
    >>> "<b>&lt;b&gt;</b>" in html, "a cat &amp; a hat" in html
    (True, True)
    """
    names = ensemble.class_names
    parts = [
        _bank(ensemble, name, is_open=number < OPEN) for number, name in enumerate(names[:CLASSES])
    ]
    if len(names) > CLASSES:
        others = count(len(names) - CLASSES, "more class", "more classes")
        parts.append(f'<div style="{_FAINT}">and {escape(others)}</div>')
    on = "" if encoder is None else f" · {escape(str(encoder))}"
    about = f"<b>{escape(kind)}</b> · {escape(sizes(ensemble))}{on}"
    return f'<div class="pb-card" style="{_CARD}"><div>{about}</div>{"".join(parts)}</div>'


def _bank(ensemble: "PromptEnsemble", name: str, *, is_open: bool) -> str:
    """Return the heaviest sentences of a class, under its name."""
    prompts = list(ensemble.prompts(name).items())
    rows = [
        f'<tr><td style="{_NUMBER}">{100 * share:.1f} %</td><td style="{_CELL}">{escape(text)}</td></tr>'
        for text, share in prompts[:SENTENCES]
    ]
    if len(prompts) > SENTENCES:
        share = sum(share for _, share in prompts[SENTENCES:])
        others = count(len(prompts) - SENTENCES, "other", "others")
        rows.append(
            f'<tr style="{_FAINT}"><td style="{_NUMBER}">{100 * share:.1f} %</td>'
            f'<td style="{_CELL}">{escape(others)}</td></tr>'
        )
    return (
        f"<details{' open' * is_open}><summary><b>{escape(name)}</b> "
        f'<span style="{_FAINT}">{count(len(prompts), "sentence")}</span></summary>'
        f'<table style="{_TABLE}"><tbody>{"".join(rows)}</tbody></table></details>'
    )

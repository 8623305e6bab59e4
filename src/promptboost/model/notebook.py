"""HTML of an ensemble in a notebook: its classes, each with its heaviest sentences."""

from html import escape
from typing import TYPE_CHECKING

from promptboost.errors import count, percent

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
    """Return the numbers of classes, rounds and sentences."""
    return (
        f"{count(len(ensemble.class_names), 'class', 'classes')}, {count(len(ensemble), 'round')}, "
        f"{count(ensemble.n_prompts, 'sentence')}"
    )


def card(ensemble: "PromptEnsemble", kind: str, encoder: object) -> str:
    """Return an ensemble as HTML: a summary, titled `kind`, and its classes to open."""
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
    prompts, pinned = list(ensemble.prompts(name).items()), ensemble.pinned.get(name, ())
    mark = f' <span style="{_FAINT}">added by hand</span>'
    rows = [
        f'<tr><td style="{_NUMBER}">{percent(share)}</td><td style="{_CELL}">{escape(text)}'
        f"{mark if text in pinned else ''}</td></tr>"
        for text, share in prompts[:SENTENCES]
    ]
    if len(prompts) > SENTENCES:
        share = sum(share for _, share in prompts[SENTENCES:])
        others = count(len(prompts) - SENTENCES, "other", "others")
        rows.append(
            f'<tr style="{_FAINT}"><td style="{_NUMBER}">{percent(share)}</td>'
            f'<td style="{_CELL}">{escape(others)}</td></tr>'
        )
    return (
        f"<details{' open' * is_open}><summary><b>{escape(name)}</b> "
        f'<span style="{_FAINT}">{count(len(prompts), "sentence")}</span></summary>'
        f'<table style="{_TABLE}"><tbody>{"".join(rows)}</tbody></table></details>'
    )

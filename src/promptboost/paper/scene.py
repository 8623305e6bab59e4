"""What boosting did round by round: accuracies, copies, and a picture of sentences and images."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from promptboost.compare.world import Draw
from promptboost.encoders import Encoder
from promptboost.methods import FittedMethod
from promptboost.model import PromptEnsemble
from promptboost.model.vectors import staged_heads
from promptboost.pool import fill

if TYPE_CHECKING:
    from PIL.Image import Image

_SIDE = 96  # pixels of an image in the picture


def rounds_of(fitted: FittedMethod) -> PromptEnsemble | None:
    """Return the rounds of a classifier of boosting; None of any other."""
    text = getattr(fitted, "details", {}).get("ensemble")
    return PromptEnsemble.from_json(text) if isinstance(text, str) else None


def by_round(ensemble: PromptEnsemble, encoder: Encoder, draw: Draw) -> list[tuple[float, float]]:
    """Return the accuracy after each round, on the images learnt from and on those held out."""
    learn, learn_labels = draw.learn.images.rows(encoder), draw.learn.labels
    held_out, labels = draw.held_out.rows(encoder), draw.labels
    heads = staged_heads(ensemble, encoder, ensemble.embed(encoder))
    matrices = [head.weights.astype(np.float32).T for head in heads]
    return [
        (
            float(np.mean((learn @ matrix).argmax(axis=1) == learn_labels)),
            float(np.mean((held_out @ matrix).argmax(axis=1) == labels)),
        )
        for matrix in matrices
    ]


def repeated_share(ensemble: PromptEnsemble) -> float | None:
    """Return which share of the chosen prompts has several copies in its bank; templates left out."""
    copies = [
        number
        for item in ensemble.rounds
        for name, bank in item.banks.items()
        for text, number in bank.items()
        if text != fill(item.template, name)  # with which a round begins
    ]
    return float(np.mean([number > 1 for number in copies])) if copies else None


def shown(ensemble: PromptEnsemble, encoder: Encoder, draw: Draw) -> dict[str, Any]:
    """Return what a picture shows: the prompts of each round, and how it answers each image."""
    rows = draw.learn.images.rows(encoder)
    heads = [replace(ensemble, rounds=(item,)).embed(encoder) for item in ensemble.rounds]
    answers = [head.predict_index(rows) for head in heads]
    return {
        "classes": list(ensemble.class_names),
        "rounds": [
            {name: dict(bank) for name, bank in item.banks.items()} for item in ensemble.rounds
        ],
        "images": [
            {
                "label": ensemble.class_names[label],
                "jpeg": _jpeg(image),
                "right": [bool(found[i] == label) for found in answers],
            }
            for i, (label, image) in enumerate(
                zip(draw.learn.labels.tolist(), draw.learn.images.images(), strict=True)
            )
        ],
    }


def _jpeg(image: "Image") -> str:
    """Return the middle of an image, small, as text."""
    from PIL import ImageOps

    small = ImageOps.fit(image, (2 * _SIDE, 2 * _SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=80)
    return base64.b64encode(content.getvalue()).decode("ascii")


_STYLE = (
    "text{font:12px system-ui,'Segoe UI',Roboto,sans-serif;fill:#22262b}"
    ".title{font-size:14px;font-weight:600}.class{font-weight:600;fill:#0b6e69}"
    ".faint{fill:#5c636b}"
)
_WIDE, _LINE, _LETTERS, _MOST = 560, 16, 84, 4
_RIGHT, _WRONG = "#0b6e69", "#c0392b"


def draw_scene(picture: Mapping[str, Any], about: str = "") -> str:
    """Draw each round: the sentences of both classes, and its images, the wrong ones crossed out.

    `about` stands below the title.
    """
    names = " and ".join(picture["classes"])
    title = f"{names}: prompts of each round, and the images, crossed out where it is wrong"
    parts: list[Markup] = [_text(16, 26, title, "title")]
    images: Sequence[Mapping[str, Any]] = picture["images"]
    y = 52.0
    if about:
        parts.append(_text(16, 46, about, "faint"))
        y += 22
    for number, banks in enumerate(picture["rounds"]):
        top = y
        parts.append(_text(16, y, f"Round {number + 1}", "title"))
        y += 22
        for name in picture["classes"]:
            parts.append(_text(16, y, name, "class"))
            y += _LINE
            bank = banks[name]
            for text, copies in list(bank.items())[:_MOST]:
                times = f" (× {copies})" if copies > 1 else ""
                for line in wrap(f"“{text}”{times}", _LETTERS):
                    parts.append(_text(24, y, line))
                    y += _LINE
            if len(bank) > _MOST:
                parts.append(_text(24, y, f"and {len(bank) - _MOST} more", "faint"))
                y += _LINE
            y += 4
        for place, image in enumerate(images):
            parts += _image(
                _WIDE + 24 + place * (_SIDE + 12), top, image, bool(image["right"][number])
            )
        y = max(y, top + _SIDE + 40) + 18
    width, height = _WIDE + 36 + len(images) * (_SIDE + 12), round(y)
    return str(
        Markup(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {w} {h}' width='{w}' height='{h}' "
            "role='img'><title>{title}</title><style>{style}</style>"
            "<rect width='{w}' height='{h}' fill='#ffffff'/>{parts}</svg>\n"
        ).format(w=width, h=height, title=title, style=Markup(_STYLE), parts=Markup("").join(parts))
    )


def _image(x: float, y: float, image: Mapping[str, Any], right: bool) -> list[Markup]:
    frame = _RIGHT if right else _WRONG
    parts = [
        Markup(
            "<image x='{x}' y='{y}' width='{s}' height='{s}' href='data:image/jpeg;base64,{data}'/>"
            "<rect x='{x}' y='{y}' width='{s}' height='{s}' fill='none' stroke='{c}' "
            "stroke-width='3'/>"
        ).format(x=x, y=y, s=_SIDE, data=image["jpeg"], c=frame)
    ]
    if not right:
        for a, b in ((y, y + _SIDE), (y + _SIDE, y)):
            parts.append(
                Markup(
                    "<line x1='{}' x2='{}' y1='{}' y2='{}' stroke='{}' stroke-width='3'/>"
                ).format(x, x + _SIDE, a, b, _WRONG)
            )
    parts.append(_text(x, y + _SIDE + 16, str(image["label"])[:14], "faint"))
    return parts


def _text(x: float, y: float, text: str, kind: str = "") -> Markup:
    return Markup("<text x='{:.0f}' y='{:.0f}' class='{}'>{}</text>").format(x, y, kind, text)

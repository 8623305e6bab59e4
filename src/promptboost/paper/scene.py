"""Boosting round by round: accuracies, copies, and a drawing of prompts and images."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from promptboost.compare.comparison import FewShotTask
from promptboost.encoders import Encoder
from promptboost.methods import FittedMethod
from promptboost.model import PromptEnsemble
from promptboost.model.head import staged_heads
from promptboost.pool import fill
from promptboost.report.svg import element, standalone, text

if TYPE_CHECKING:
    from PIL.Image import Image

_SIDE = 96  # pixels of an image in the drawing


def rounds_of(fitted: FittedMethod) -> PromptEnsemble | None:
    """Return the ensemble of a boosted classifier; None for any other."""
    content = getattr(fitted, "details", {}).get("ensemble")
    return PromptEnsemble.from_json(content) if isinstance(content, str) else None


def by_round(
    ensemble: PromptEnsemble, encoder: Encoder, draw: FewShotTask
) -> list[tuple[float, float]]:
    """Return the accuracy after each round, on the training images and on those held out."""
    train, train_labels = draw.learn.images.rows(encoder), draw.learn.labels
    test, test_labels = draw.held_out.rows(encoder), draw.labels
    heads = staged_heads(ensemble, encoder, ensemble.embed(encoder))
    matrices = [head.weights.astype(np.float32).T for head in heads]
    return [
        (
            float(np.mean((train @ matrix).argmax(axis=1) == train_labels)),
            float(np.mean((test @ matrix).argmax(axis=1) == test_labels)),
        )
        for matrix in matrices
    ]


def repeated_share(ensemble: PromptEnsemble) -> float | None:
    """Return the share of the chosen prompts with several copies in their bank, without templates."""
    copies = [
        number
        for round_ in ensemble.rounds
        for name, bank in round_.banks.items()
        for prompt, number in bank.items()
        if prompt != fill(round_.template, name)  # the initial prompt of a round
    ]
    return float(np.mean([number > 1 for number in copies])) if copies else None


def shown(ensemble: PromptEnsemble, encoder: Encoder, draw: FewShotTask) -> dict[str, Any]:
    """Return the content of a drawing: the prompts and predictions of each round."""
    rows = draw.learn.images.rows(encoder)
    heads = [replace(ensemble, rounds=(round_,)).embed(encoder) for round_ in ensemble.rounds]
    answers = [head.predict_index(rows) for head in heads]
    return {
        "classes": list(ensemble.class_names),
        "rounds": [
            {name: dict(bank) for name, bank in round_.banks.items()} for round_ in ensemble.rounds
        ],
        "images": [
            {
                "label": ensemble.class_names[label],
                "jpeg": _jpeg(image),
                "right": [bool(each[i] == label) for each in answers],
            }
            for i, (label, image) in enumerate(
                zip(draw.learn.labels.tolist(), draw.learn.images.images(), strict=True)
            )
        ],
    }


def _jpeg(image: "Image") -> str:
    """Return a thumbnail as base64."""
    from PIL import ImageOps

    small = ImageOps.fit(image, (2 * _SIDE, 2 * _SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=80)
    return base64.b64encode(content.getvalue()).decode("ascii")


_STYLE = (
    "text{fill:#22262b}.class{font-weight:600;fill:#0b6e69}.faint{fill:#5c636b}"
    "image+rect,.cross{fill:none;stroke-width:3}"
)
_WIDE, _LINE, _LETTERS, _MOST = 560, 16, 84, 4
_RIGHT, _WRONG = "#0b6e69", "#c0392b"


def draw_scene(scene: Mapping[str, Any], about: str = "") -> str:
    """Draw the prompts of each round and the images, errors crossed out; `about` is a subtitle."""
    names = " and ".join(scene["classes"])
    title = f"{names}: prompts of each round, and the images, crossed out where it is wrong"
    parts = [text(16, 26, title, "title")]
    images: Sequence[Mapping[str, Any]] = scene["images"]
    y = 52
    if about:
        parts.append(text(16, 46, about, "faint"))
        y += 22
    for number, banks in enumerate(scene["rounds"]):
        top = y
        parts.append(text(16, y, f"Round {number + 1}", "title"))
        y += 22
        for name in scene["classes"]:
            bank = banks[name]
            lines = [(16, name, "class")]
            for prompt, copies in list(bank.items())[:_MOST]:
                times = f" (× {copies})" if copies > 1 else ""
                lines += [(24, line, "") for line in wrap(f"“{prompt}”{times}", _LETTERS)]
            if len(bank) > _MOST:
                lines.append((24, f"and {len(bank) - _MOST} more", "faint"))
            for x, line, kind in lines:
                parts.append(text(x, y, line, kind))
                y += _LINE
            y += 4
        for column, image in enumerate(images):
            left = _WIDE + 24 + column * (_SIDE + 12)
            parts += _image(left, top, image, bool(image["right"][number]))
        y = max(y, top + _SIDE + 40) + 18
    width = _WIDE + 36 + len(images) * (_SIDE + 12)
    return standalone(width, y, title, _STYLE, parts)


def _image(x: int, y: int, image: Mapping[str, Any], right: bool) -> list[Markup]:
    square = {"x": x, "y": y, "width": _SIDE, "height": _SIDE}
    parts = [
        element("image", **square, href=f"data:image/jpeg;base64,{image['jpeg']}"),
        element("rect", **square, stroke=_RIGHT if right else _WRONG),
    ]
    if not right:
        cross = f"M{x},{y}l{_SIDE},{_SIDE}m0,{-_SIDE}l{-_SIDE},{_SIDE}"
        parts.append(element("path", class_="cross", d=cross, stroke=_WRONG))
    return [*parts, text(x, y + _SIDE + 16, str(image["label"])[:14], "faint")]

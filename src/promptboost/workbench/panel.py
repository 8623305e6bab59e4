"""Panel: the figures of a bench as plain data, as a page shows them."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from promptboost.model import PromptEnsemble
from promptboost.model.change import Change
from promptboost.model.scores import ClassKey
from promptboost.run.bench import Bench, Effect
from promptboost.run.influence import Blame, confusion_blame, each_influence

#: Confusions, images of each, and classes that pay, that are told.
_CONFUSIONS, _IMAGES, _PAYING = 12, 5, 6

#: A text, and the changes that made it of the run's.
EditedText = tuple[PromptEnsemble, tuple[Change, ...]]


def names_now(bench: Bench, text: EditedText) -> dict[str, str]:
    """Return what a text calls the classes that the images know, by the images' names."""
    return {old: new for new, old in bench.originals(text[1]).items()}


def class_keys(bench: Bench, text: EditedText) -> tuple[ClassKey, ...]:
    """Return what the answers of a text depend on."""
    ensemble, changes = text
    return bench.scores.class_keys(ensemble, bench.known_names(bench.originals(changes)))


def effect_record(effect: Effect, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of an effect; `names` are those that classes have now."""
    return {
        "images": effect.images,
        "before": effect.before,
        "after": effect.after,
        "changed": effect.changed,
        "right": effect.mended,
        "wrong": effect.broken,
        "left_out": effect.left_out,
        "paying": [
            {
                "name": names.get(item.class_name, item.class_name),
                "count": item.count,
                "before": item.before,
                "after": item.after,
            }
            for item in effect.paying[:_PAYING]
        ],
        "more_paying": max(0, len(effect.paying) - _PAYING),
    }


def flip_records(effect: Effect, names: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return the images with another answer, by what becomes of them."""
    found: dict[str, list[dict[str, Any]]] = {"right": [], "wrong": [], "other": []}
    for flip in effect.flips:
        found[flip.becomes].append(
            {
                "image": flip.image,
                "label": names.get(flip.label, flip.label),
                "before": flip.before,
                "after": flip.after,
            }
        )
    return found


def class_records(bench: Bench, text: EditedText, effect: Effect) -> list[dict[str, Any]]:
    """Return the classes of a text with their figures, sentences and shares, and what these were."""
    ensemble, changes = text
    originals = bench.originals(changes)
    known = bench.known_names(originals)
    keys = class_keys(bench, (bench.ensemble, ()))
    before = {
        name: dict(key.weights) for name, key in zip(bench.ensemble.class_names, keys, strict=True)
    }
    measured = {item.class_name: item for item in effect.classes}
    classes = []
    for name, key in zip(ensemble.class_names, class_keys(bench, text), strict=True):
        item = measured.get(originals.get(name, ""))
        was = before[known[name]] if name in known else {}
        classes.append(
            {
                "name": name,
                "was": known.get(name),
                "count": item.count if item else 0,
                "before": item.before if item else None,
                "after": item.after if item else None,
                "sentences": [
                    {"text": sentence, "share": share, "was": was.get(sentence)}
                    for sentence, share in key.weights
                ],
            }
        )
    return classes


def reason_records(bench: Bench, text: EditedText) -> Iterator[dict[str, Any] | None]:
    """Yield None while the influence of each sentence is worked out, class by class; then all.

    Each is what happens to the shown images when that sentence alone is taken out.
    """
    ensemble, changes = text
    labels = bench.labels_in(ensemble, changes)
    known = bench.known_names(bench.originals(changes))
    sentences: dict[str, dict[str, list[int] | None]] = {}
    for part in each_influence(bench.scores, ensemble, labels, known):
        for item in part:
            counts = [item.mended, item.broken, item.changed] if item.removable else None
            sentences.setdefault(item.class_name, {})[item.prompt] = counts
        yield None
    blame = confusion_blame(bench.scores, ensemble, labels, most=_CONFUSIONS, originals=known)
    answers, place = bench.scores.answers(ensemble, known), ensemble.class_names.index

    def images(item: Blame) -> list[str]:
        mixed = (labels == place(item.true)) & (answers == place(item.answered))
        return [bench.images[number] for number in np.flatnonzero(mixed)[:_IMAGES].tolist()]

    confusions = [
        {
            "true": item.true,
            "answered": item.answered,
            "count": item.count,
            "sentences": [
                {"class": name, "text": sentence, "value": value}
                for name, sentence, value in item.sentences[:1]
            ],
            "images": images(item),
        }
        for item in blame
    ]
    yield {"sentences": sentences, "confusions": confusions}

"""Run folders for tests: one really fitted, and parts to change by hand."""

import base64
import io
import json

import msgspec
import numpy as np
from PIL import Image, ImageDraw
from sklearn.linear_model import LogisticRegression

from promptboost.baselines import Guesses
from promptboost.boosting import BoostSettings, GridPool, Shots, boost
from promptboost.model import PromptEnsemble, Round
from promptboost.pool import TEMPLATES, fill
from promptboost.pool.readers import emoji_descriptions
from promptboost.run.run_folder import RunFolder
from tests.synthetic import clip_like

PROMPTS = 40
LABELS = {
    "zero-shot": "zero-shot, one template",
    "template-mean": "mean of templates",
    "pool-mean": "mean of pool",
    "logistic": "logistic regression",
    "promptboost": "boosted prompts",
}
RUN_TOML = """
[data]
source = "emoji"
shots = 4

[encoder]
name = "fake:64-0"

[fit]
rounds = 12
views_per_round = 4
penalty = true
names = ["a", "b"]

[versions]
promptboost = "0.1.0"
numpy = "2.4.0"
"""


def thumbnail(color, text=""):
    image = Image.new("RGB", (96, 72), color)
    ImageDraw.Draw(image).text((8, 8), text, fill="white")
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=60)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def fitted(n_classes=8, shots=4, tests=12, rounds=12, seed=0):
    """Boost a made-up task whose prompts are those of the emoji; give the ensemble and metrics."""
    task = clip_like(n_classes, shots + tests, prompts=PROMPTS, confusion=2.4, seed=seed)
    learn = np.arange(len(task.labels)) % (shots + tests) < shots
    names = list(emoji_descriptions())[:n_classes]
    texts = [emoji_descriptions()[name][:PROMPTS] for name in names]
    templates = [[fill(t, name) for t in TEMPLATES[:8]] for name in names]
    given = Shots.from_rows(task.images[learn], task.labels[learn], task.views[learn])
    pool = GridPool.from_rows(task.templates, task.prompts)
    done = list(boost(given, pool, BoostSettings(rounds=rounds)))
    made = []
    for item in done:
        weak = item.composition
        banks = {}
        for k, name in enumerate(names):
            banks[name] = {templates[k][weak.template]: 1}
            for prompt, copies in weak.banks[k].items():
                banks[name][texts[k][prompt]] = copies
        made.append(Round(TEMPLATES[weak.template], banks, weak.error, weak.template_error))
    ids = [f"{names[k]}/{i:03d}.png" for i, k in enumerate(task.labels)]
    ensemble = PromptEnsemble(
        tuple(names),
        tuple(made),
        encoder_id="fake:64-0",
        encoder_fingerprint="f00d",
        pool_fingerprint="cafe",
        settings={"rounds": rounds},
        versions={"promptboost": "0.1.0", "numpy": "2.4.0"},
        sample_weights=dict(
            zip(np.array(ids)[learn].tolist(), done[-1].state.weights.tolist(), strict=True)
        ),
    )
    rows = {}
    for k in range(n_classes):
        rows |= dict(zip(templates[k], task.templates[k], strict=True))
        rows |= dict(zip(texts[k], task.prompts[k], strict=True))
    return ensemble, _metrics(ensemble, task, learn, names, ids, rows, shots)


def _metrics(ensemble, task, learn, names, ids, rows, shots):
    names = np.array(names)
    truth, images = names[task.labels], task.images

    def nearest(means):
        return names[(images @ np.stack(means).T).argmax(1)]

    probe = LogisticRegression(max_iter=200).fit(images[learn], truth[learn])
    staged = [ensemble.truncate(m).embed(rows).predict(images) for m in range(1, len(ensemble) + 1)]
    guesses = {
        "zero-shot": nearest(task.templates[:, 0]),
        "template-mean": nearest(task.templates.mean(1)),
        "pool-mean": nearest([block.mean(0) for block in task.prompts]),
        "logistic": probe.predict(images),
        "promptboost": staged[-1],
    }
    return {
        "schema_version": 2,
        "task": {
            "data": "emoji",
            "classes": len(names),
            "learn_images": int(learn.sum()),
            "class_sizes": dict.fromkeys(names.tolist(), shots),
            "held_out_images": int((~learn).sum()),
            "held_out": "rest",
            "shots": shots,
            "seed": 0,
            "bad_images": [{"path": "bird/empty.png", "reason": "the file is empty"}],
        },
        "encoder": {"id": "fake:64-0", "fingerprint": "f00d", "dim": 64},
        "pool": {
            "fingerprint": "cafe",
            "templates": 8,
            "prompts": PROMPTS * len(names),
            "statistics": {},
            "missing": [],
            "unused": ["brid"],
        },
        "methods": [
            {
                "name": name,
                "label": LABELS[name],
                "accuracy": _share(guess, truth, ~learn),
                "class_accuracy": float(
                    np.mean([_share(guess, truth, ~learn & (truth == c)) for c in names])
                ),
                "learn_accuracy": _share(guess, truth, learn),
            }
            for name, guess in guesses.items()
        ],
        "staged": [
            {
                "round": m,
                "accuracy": _share(guess, truth, ~learn),
                "learn_accuracy": _share(guess, truth, learn),
                "weak_error": ensemble.rounds[m - 1].error,
                "template_error": ensemble.rounds[m - 1].template_error,
            }
            for m, guess in enumerate(staged, start=1)
        ],
        "per_class": [
            {
                "class": name,
                "count": int((~learn & (truth == name)).sum()),
                "accuracy": {
                    method: _share(guesses[method], truth, ~learn & (truth == name))
                    for method in ("zero-shot", "promptboost")
                },
            }
            for name in names.tolist()
        ],
        "confusions": _confusions(truth, guesses["promptboost"], ids, ~learn),
        "hardest": _hardest(ensemble, truth, guesses["promptboost"], ids),
        "transfers": [
            {
                "encoder": "fake:64-1",
                "accuracy": {
                    "zero-shot": 0.5,
                    "template-mean": 0.55,
                    "pool-mean": None,
                    "promptboost": 0.65,
                },
            }
        ],
        "timing": {"images_s": 1.25, "texts_s": 0.5, "boost_s": 0.75, "total_s": 2.5},
    }


def _share(guess, truth, where):
    return float((guess == truth)[where].mean())


def _confusions(truth, guess, ids, where):
    pairs = {}
    for i in np.flatnonzero(where & (truth != guess)):
        pairs.setdefault((str(truth[i]), str(guess[i])), []).append(ids[i])
    ordered = sorted(pairs.items(), key=lambda pair: -len(pair[1]))
    return [
        {"true": t, "predicted": p, "count": len(found), "images": found[:6]}
        for (t, p), found in ordered
    ]


def _hardest(ensemble, truth, guess, ids):
    place = {image: i for i, image in enumerate(ids)}
    heavy = sorted(ensemble.sample_weights.items(), key=lambda pair: -pair[1])[:24]
    return [
        {
            "image": image,
            "label": str(truth[place[image]]),
            "predicted": str(guess[place[image]]),
            "weight": weight,
        }
        for image, weight in heavy
    ]


def thumbnails_for(metrics):
    shown = {item["image"] for item in metrics["hardest"]}
    shown |= {image for pair in metrics["confusions"] for image in pair["images"]}
    colors = ["teal", "maroon", "navy", "olive", "purple"]
    return {p: thumbnail(colors[i % 5], p[:10]) for i, p in enumerate(sorted(shown))}


def write_run(folder, ensemble, metrics, thumbnails=None, toml=RUN_TOML):
    """Write a run folder as a fit would."""
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write_ensemble(ensemble)
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    if thumbnails is not None:
        (folder / "thumbnails.json").write_text(json.dumps(thumbnails), encoding="utf-8")
    if toml is not None:
        (folder / "run.toml").write_text(toml, encoding="utf-8")
    return folder


def without_held_out(metrics):
    """The same figures for a fit that used all images."""
    metrics = json.loads(json.dumps(metrics))
    metrics["task"] |= {"held_out": None, "held_out_images": 0}
    for row in (*metrics["methods"], *metrics["staged"]):
        row["accuracy"] = None
    for row in metrics["methods"]:
        row["class_accuracy"] = None
    return metrics


def with_probabilities(metrics):
    """The same figures with those of probabilities that are about as good as they claim."""
    metrics = json.loads(json.dumps(metrics))
    rng = np.random.default_rng(0)
    made = []
    for name, label in (("text", "text alone: boosted"), ("promptboost", "text + residual")):
        chances = rng.dirichlet(np.full(8, 0.3), 300)
        labels = np.array([rng.choice(8, p=row) for row in chances])
        guesses = Guesses(name, label, chances.argmax(axis=1), probabilities=chances)
        made.append(msgspec.to_builtins(guesses.result(labels)))
    others = [row for row in metrics["methods"] if row["name"] != "promptboost"]
    return metrics | {"methods": [*others, *made]}

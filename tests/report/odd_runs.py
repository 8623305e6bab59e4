"""Run folders that are hard on a report: text that would be more than text, and much of it."""

import json

from promptboost.model import PromptEnsemble, Round
from tests.report.run_tools import thumbnail, write_run

HOSTILE = [
    "<script>alert(1)</script>",
    "\"quoted\" 'both' ways & <b>bold</b>",
    "{{ 7 * 7 }} {% raw %}",
    "קטן \u202eevil\u202c",
    "🦜 parrot --> ]]> </style></svg>",
    "x' onload='alert(1)",
]


def hostile_run(folder):
    names = (*HOSTILE, "plain")
    banks = {name: {f"{name} prompt {HOSTILE[i % 6]}": 1} for i, name in enumerate(names)}
    ensemble = PromptEnsemble(
        names,
        (Round(HOSTILE[0] + "{}", banks, 0.1, 0.2),),
        encoder_id=HOSTILE[0],
        settings={HOSTILE[0]: HOSTILE[1]},
        history=(HOSTILE[0],),
        sample_weights={name: 1.0 if i else 50.0 for i, name in enumerate(names)},
    )
    metrics = {
        "schema_version": 2,
        "task": {
            "data": HOSTILE[0],
            "classes": 7,
            "learn_images": 7,
            "held_out_images": 7,
            "held_out": "test",
            "shots": 1,
            "seed": 0,
            "bad_images": [{"path": t, "reason": t} for t in [*HOSTILE, "caf\udce9.png"]],
        },
        "encoder": {"id": HOSTILE[0], "fingerprint": HOSTILE[0]},
        "pool": {"missing": HOSTILE, "unused": HOSTILE, "fingerprint": HOSTILE[0]},
        "methods": [
            {
                "name": name,
                "label": HOSTILE[0],
                "accuracy": 0.5,
                "class_accuracy": 0.5,
                "learn_accuracy": 1,
            }
            for name in ("zero-shot", "logistic", "promptboost")
        ],
        "staged": [{"round": 1, "accuracy": 0.5, "learn_accuracy": 1.0}],
        "per_class": [
            {"class": n, "count": 9, "accuracy": {"zero-shot": 1, "promptboost": 0}} for n in names
        ],
        "confusions": [
            {"true": n, "predicted": names[0], "count": 1, "images": [n]} for n in names
        ],
        "hardest": [{"image": n, "label": n, "predicted": names[0], "weight": 1} for n in names],
        "transfers": [
            {
                "encoder": HOSTILE[0],
                "accuracy": {"zero-shot": 1, "template-mean": None, "promptboost": 0},
            }
        ],
        "timing": {HOSTILE[0]: 1.0},
    }
    thumbnails = {
        names[0]: thumbnail("red"),
        names[1]: "javascript:alert(1)",
        names[2]: "data:image/svg+xml;base64,PHN2Zy8+",
        names[3]: "https://example.org/a.png",
        names[4]: 'data:image/png;base64,AAAA" onerror="alert(1)',
    }
    toml = f"[fit]\n{json.dumps(HOSTILE[0])} = {json.dumps(HOSTILE[1])}\n"
    return write_run(folder, ensemble, metrics, thumbnails, toml)


def many_run(folder):
    """200 classes and 50 rounds."""
    names = [f"class number {k}" for k in range(200)]
    pool = [f"a long enough sentence about a thing, variant {i}, seen from afar" for i in range(60)]
    rounds = tuple(
        Round(
            "a photo of a {}.",
            {
                name: {pool[(7 * m + k + 5 * j) % 60]: 1 + (m + j) % 9 for j in range(6)}
                for k, name in enumerate(names)
            },
            0.1,
            0.2,
        )
        for m in range(50)
    )
    ensemble = PromptEnsemble(tuple(names), rounds)
    tiny = thumbnail("teal", "x")
    images = [f"p{i}.png" for i in range(24)]
    metrics = {
        "schema_version": 2,
        "task": {
            "data": "many",
            "classes": 200,
            "learn_images": 1600,
            "held_out_images": 9000,
            "held_out": "test",
            "shots": 8,
            "seed": 0,
        },
        "encoder": {"id": "fake:32-0"},
        "methods": [
            {
                "name": name,
                "label": name,
                "accuracy": 0.5,
                "class_accuracy": 0.5,
                "learn_accuracy": 0.5,
            }
            for name in ("zero-shot", "logistic", "promptboost")
        ],
        "staged": [{"round": m, "accuracy": 0.5, "learn_accuracy": 0.6} for m in range(1, 51)],
        "per_class": [
            {"class": n, "count": 45, "accuracy": {"zero-shot": 0.4, "promptboost": 0.5}}
            for n in names
        ],
        "confusions": [
            {"true": names[k], "predicted": names[k - 1], "count": 9, "images": images[:6]}
            for k in range(200)
        ],
        "hardest": [
            {"image": p, "label": names[0], "predicted": names[1], "weight": 0.01} for p in images
        ],
    }
    return write_run(folder, ensemble, metrics, dict.fromkeys(images, tiny))

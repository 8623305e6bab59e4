"""A small task by which every plan runs on the fake encoder in seconds."""

from promptboost.paper.plans import PaperChoice
from promptboost.paper.runner import PaperRequest
from promptboost.pool import build_pool, save_pool
from tests.run.run_tools import COLOURS, SENTENCES, write_images

SOURCE, TARGET = "fake:32-0", "fake:32-1"
METHODS = ("zero-shot", "dclip", "cupl", "proapo", "tpb?rounds=3")


def write_task(root, name="colors", seed=0):
    """Write images and sentences of one data set as --data and --pools find them."""
    write_images(root / "data" / name, count=6, noise=60, seed=seed)
    words = {
        "cupl": {label: texts[:2] for label, texts in SENTENCES.items()},
        "dclip": {label: texts[2:] for label, texts in SENTENCES.items()},
    }
    pool = build_pool(list(COLOURS), templates=["a {}.", "the {}."], descriptions=words)
    (root / "pools").mkdir(exist_ok=True)
    save_pool(pool, root / "pools" / f"{name}.jsonl")


def asked(root, **changes):
    choice = {
        "datasets": ("colors",),
        "shots": (1, 2),
        "seeds": (1, 2),
        "methods": METHODS,
        "encoder": SOURCE,
        "transfers": (TARGET,),
        "views": 2,
        **changes,
    }
    return PaperRequest(root / "out", root / "data", root / "pools", PaperChoice(**choice))

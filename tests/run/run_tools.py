"""A small task for the fake encoder: colors behind noise, and sentences that name them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from promptboost.config import FitConfig
from promptboost.model import PromptEnsemble
from promptboost.run.run_folder import RunFolder
from promptboost.training import Trainer

ENCODER = "fake:32-0"
COLOURS = {
    "ember": (210, 40, 60),
    "leaf": (60, 190, 50),
    "sea": (40, 70, 200),
    "night": (70, 40, 90),
}
SENTENCES = {
    "ember": ["something red", "red and a little blue", "warm red light"],
    "leaf": ["something green", "green and a little red", "fresh green"],
    "sea": ["something blue", "blue and a little green", "deep blue water"],
    "night": ["something dark", "blue and red in the dark", "no light"],
}


def write_images(root: Path, count: int = 8, noise: float = 110.0, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for name, color in COLOURS.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            middle = np.array(color) + rng.normal(0, 45, 3)
            pixels = rng.normal(middle, noise, (16, 20, 3))
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.save(root / name / f"{number}.png")
    return root


def write_sentences(path: Path) -> Path:
    path.write_text(json.dumps(SENTENCES))
    return path


@contextmanager
def interrupted(rounds: int) -> Iterator[None]:
    """Interrupt the fit within after so many rounds."""
    fit = Trainer.fit

    def stopped(self, *args, on_round, **options):
        def stop(ensemble, done):
            on_round(ensemble, done)
            if len(ensemble) == rounds:
                raise KeyboardInterrupt

        return fit(self, *args, on_round=stop, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            yield


def request(root: Path, run: str = "run", **options) -> dict[str, Any]:
    """Return the arguments of a quick fit on the images in root/images; settings and flags may be mixed."""
    flags = {
        name: options.pop(name)
        for name in ("overwrite", "resume", "cache", "source", "device", "executor")
        if name in options
    }
    settings = FitConfig(
        **{
            "encoder": ENCODER,
            "shots": 4,
            "rounds": 5,
            "views": 4,
            "views_per_round": 2,
            "prompts": str(root / "sentences.json"),
            **options,
        }
    )
    source = flags.pop("source", str(root / "images"))
    return {"source": source, "run": root / run, "settings": settings, **flags}


def unfinish(run: RunFolder) -> None:
    """Leave a run as if it had been interrupted after its last round."""
    ensemble = PromptEnsemble.load(run.ensemble_path)
    ensemble.save(run.partial_path, sample_weights=True)


def start_promptboost(*arguments: str, cwd: Path, cache: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "promptboost", *arguments],
        cwd=cwd,
        env={**os.environ, "PROMPTBOOST_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )


def heed_ctrl_c() -> None:
    """Undo what a shell does to what it starts in the background: Ctrl-C would be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

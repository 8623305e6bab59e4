"""Whether anything depends on how far an encoder's cosines spread.

    python -m benchmarks.cones emoji scenes=FOLDER textures=FOLDER --prompts textures=FILE -o OUT

CLIP puts all images into one narrow cone and all texts into another, so that its cosines spread about a
quarter as far as those of a ConSE encoder. Here the embeddings of conse:lite0 are put into such cones.
Every cosine c becomes c / 4 + 0.2: zero-shot answers are the same, and whatever else changes is the
method's doing. Printed is accuracy in per cent, means over draws, on conse:lite0 and in the cones. Every
fit is kept in OUT: stop it, and the same command goes on.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from promptboost.compare.cells import CompareRequest
from promptboost.compare.compare import compare
from promptboost.compare.summary import curves, written
from promptboost.config import FitConfig
from promptboost.encoders import load_encoder, register_encoder
from promptboost.encoders.runtime import fingerprint

METHODS = (
    "zero-shot,promptboost?residual=off,promptboost,tpb?rounds=10,logistic,tip-adapter-f,lp++,clap"
)
#: What is left of the spread of cosines, and what is added to all of them.
SPREAD, SHIFT = 0.25, 0.2


class Cones:
    """An encoder whose images lie in one narrow cone, and texts in another."""

    def __init__(self, name: str, device: str | None = None) -> None:
        self._encoder = load_encoder(f"conse:{name}", device=device)
        self.id = f"cones:{name}"
        self.dim = self._encoder.dim + 2
        self.logit_scale = self._encoder.logit_scale / SPREAD
        self.fingerprint = fingerprint({"kind": "cones", "of": self._encoder.fingerprint})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts beside the first axis of two more."""
        return _beside(self._encoder.encode_texts(texts), 1.0)

    def encode_images(self, images: Iterable[Image]) -> NDArray[np.float32]:
        """Embed images beside another axis, whose cosine with the first makes the shift."""
        return _beside(self._encoder.encode_images(images), SHIFT / (1 - SPREAD))


def _beside(rows: NDArray[np.float32], cosine: float) -> NDArray[np.float32]:
    axis = np.sqrt(1 - SPREAD) * np.array([cosine, np.sqrt(1 - cosine**2)])
    cone = np.broadcast_to(axis, (len(rows), 2))
    return np.hstack([np.sqrt(SPREAD) * rows, cone]).astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on both, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", nargs="*", default=["emoji"], help="DATA as for fit, or NAME=DATA.")
    parser.add_argument("--prompts", action="append", default=[], help="NAME=FILE, as for fit.")
    parser.add_argument("--shots", nargs="*", type=int, default=[1, 4, 16])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("-o", "--out", type=Path, default=Path("cones"))
    asked = parser.parse_args(arguments)
    register_encoder("cones", Cones)
    prompts = dict(item.split("=", 1) for item in asked.prompts)
    for item in asked.data:
        name, _, source = item.rpartition("=")
        name = name or Path(source).name
        found = []
        for encoder in ("conse:lite0", "cones:lite0"):
            request = CompareRequest(
                source,
                asked.out / f"{name}-{encoder.partition(':')[0]}",
                methods=tuple(METHODS.split(",")),
                encoder=encoder,
                shots=tuple(asked.shots),
                seeds=tuple(asked.seeds),
                words=FitConfig(prompts=prompts.get(name)),
            )
            found.append(curves(compare(request, print).lines, encoder))
        for one, other in zip(*found, strict=True):
            pairs = [f"{written(one, k)} → {written(other, k)}" for k in asked.shots]
            print(f"| {name} | {one.method} | {' | '.join(pairs)} |", flush=True)


if __name__ == "__main__":
    main()

"""A run for programs without promptboost: its class matrix and, as ONNX, its image tower too."""

import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import promptboost
from promptboost.data.shots import load_task
from promptboost.encoders.graph import GraphEncoder, classifier_graph, graph_encoder
from promptboost.errors import EncoderError, PromptBoostError, RunError
from promptboost.io import json_text, write_bytes, writing
from promptboost.model import PromptClassifier
from promptboost.model.head import Head
from promptboost.progress import Advance, Progress, no_progress, stage
from promptboost.run.predict import open_classifier
from promptboost.run.run_folder import RunFolder

if TYPE_CHECKING:
    from PIL.Image import Image

#: Images on which an exported graph is compared with the run.
CHECKED = 100
#: How far its logits may lie from those of the run.
TOLERANCE = 1e-3
_AT_ONCE = 16


@dataclass(frozen=True)
class Exported:
    """What was written, and how near the graph is to the run."""

    folder: Path
    files: tuple[str, ...]
    checked: dict[str, Any] | None  # images, same answers, largest difference; None without a graph


def export_run(
    run: Path,
    folder: Path,
    *,
    onnx: bool = False,
    encoder: str | None = None,
    text_only: bool = False,
    overwrite: bool = False,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
    allow_download: bool = False,
) -> Exported:
    """Write what another program needs to answer as a run does.

    ``classifier.json`` says what is what; ``classifier.safetensors`` and ``classifier.npz`` hold the class
    matrix: logits are the products of embeddings, rows of length one, with its rows. With `onnx`,
    ``model.onnx`` has the image tower in front of it. Nothing is written unless it answers as the run does.
    """
    home = RunFolder(run)
    home.check_readable()
    if folder.exists() and not overwrite and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise RunError(
            f"{folder} is there already; add --overwrite to write into it, or choose another name"
        )
    classifier = open_classifier(
        run,
        encoder=encoder,
        text_only=text_only,
        cache=cache,
        progress=progress,
        device=device,
        allow_download=allow_download,
    )
    head, names = classifier.head, classifier.class_names
    matrix = np.float32(head.factor / head.rounds) * head.matrix
    one: Any = classifier.encoder
    about = _about(classifier, head)
    files = {
        "classifier.safetensors": _safetensors(matrix, names),
        "classifier.npz": _npz(matrix, names),
        "ensemble.json": classifier.ensemble.to_json().encode("utf-8"),
    }
    if onnx:
        tower = graph_encoder(one)
        with stage(progress, f"writing the image tower of {one.id} as a graph"):
            graph = tower.image_graph()
            facts = {
                "producer": "promptboost",
                "encoder": one.id,
                "preprocessing": json.dumps(dict(graph.preprocessing)),
            }
            model = classifier_graph(graph, matrix, names, facts)
        about["preprocessing"] = dict(graph.preprocessing)
        images = _images(home, progress)
        with stage(progress, "checking the graph", len(images[1])) as advance:
            about["checked"] = _check(model, tower, classifier, matrix, images, advance)
        files["model.onnx"] = model
    about["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    with writing(folder, "export"):
        for name, content in files.items():
            write_bytes(folder / name, content, follow=False)
        write_bytes(folder / "classifier.json", json_text(about).encode("utf-8"), follow=False)
    return Exported(folder, ("classifier.json", *files), about["checked"])


def _about(classifier: PromptClassifier, head: Head) -> dict[str, Any]:
    """Return what ``classifier.json`` says; what only a graph has is None."""
    encoder: Any = classifier.encoder
    return {
        "format": "promptboost-classifier",
        "version": 1,
        "promptboost": promptboost.__version__,
        "class_names": list(classifier.class_names),
        "encoder": {"id": encoder.id, "fingerprint": encoder.fingerprint, "dim": head.dim},
        "text_only": head.residual is None,
        "text_fingerprint": classifier.ensemble.fingerprint,
        "logits": "embeddings @ matrix.T; embeddings are rows of length one",
        "probabilities": "softmax of the logits",
        "preprocessing": None,
        "checked": None,
    }


def _safetensors(matrix: NDArray[np.float32], names: Iterable[str]) -> bytes:
    from safetensors.numpy import save

    facts = {"class_names": json.dumps(list(names), ensure_ascii=False)}
    return save({"matrix": np.ascontiguousarray(matrix)}, metadata=facts)


def _npz(matrix: NDArray[np.float32], names: Iterable[str]) -> bytes:
    file = io.BytesIO()
    np.savez(file, matrix=matrix, class_names=np.array(list(names), dtype=np.str_))
    return file.getvalue()


def _images(home: RunFolder, progress: Progress) -> "tuple[str, list[Image]]":
    """Return images to compare on: those of the run where they are, else made-up ones."""
    try:
        task = load_task(home.source, home.settings, progress=progress)
        found = [*task.held_out.images, *task.learn.images][:CHECKED]
        images = [image.open() for image in found]
        if images:
            return "of the run", images
    except (PromptBoostError, OSError):
        pass
    return "made up", _made_up()


def _made_up() -> "list[Image]":
    """Draw images of noise at many sizes, no two alike."""
    from PIL import Image

    chance = np.random.default_rng(0)
    images = []
    for _ in range(CHECKED):
        sides = chance.integers(2, 24, size=2)
        small = chance.integers(0, 256, size=(*sides, 3), dtype=np.uint8)
        height, width = (int(side) * 16 for side in sides)
        images.append(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    return images


def _check(
    model: bytes,
    tower: GraphEncoder,
    classifier: Any,
    matrix: NDArray[np.float32],
    given: "tuple[str, list[Image]]",
    advance: Advance,
) -> dict[str, Any]:
    """Compare a graph with the run on images; raise if it answers otherwise."""
    from promptboost.encoders.runtime import onnx_session

    which, images = given
    session = onnx_session(model)
    differences, same = [0.0], 0
    for start in range(0, len(images), _AT_ONCE):
        part = images[start : start + _AT_ONCE]
        ours = np.asarray(classifier.encoder.encode_images(part)) @ matrix.T
        pixels = np.stack([tower.pixels(image) for image in part])
        (theirs,) = session.run(["logits"], {"pixels": pixels})
        differences.append(float(np.abs(ours - theirs).max()))
        same += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        advance(len(part))
    largest = max(differences)
    if same < len(images) or largest > TOLERANCE:
        raise EncoderError(
            f"the graph does not answer as the run does: {len(images) - same} of {len(images)} answers "
            f"differ, logits by up to {largest:.2g}; nothing is written"
        )
    return {
        "images": len(images),
        "images_are": which,
        "same_answers": same,
        "largest_difference": largest,
    }

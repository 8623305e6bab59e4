"""Export a run: its class matrix and, as ONNX, its image encoder."""

import hashlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

import promptboost
from promptboost.data.shots import load_task
from promptboost.encoders import load_encoder
from promptboost.encoders.base import UnitRows
from promptboost.encoders.graph import GraphEncoder, classifier_graph, graph_encoder, onnx_files
from promptboost.errors import EncoderError, PromptBoostError, RunError
from promptboost.io import json_text, write_bytes, writing
from promptboost.model import PromptClassifier
from promptboost.model.head import Head
from promptboost.progress import Advance, Progress, no_progress, stage
from promptboost.run.predict import LoadOptions, open_classifier
from promptboost.run.run_folder import RunFolder

if TYPE_CHECKING:
    from PIL.Image import Image

#: Images on which an exported graph is compared with the run.
CHECKED = 100
#: Largest difference between its logits and those of the run.
TOLERANCE = 1e-3
_AT_ONCE = 16
# Smallest cosine of an embedding by an exported tower with that of the encoder. Pillow scales images a
# little differently from torchvision: 0.9999 for noise.
_LEAST_COSINE = 0.999
_TEXTS = (
    *("a bird", "", "A photo of a small brown bird, sitting on a branch.", "red-and-blue PARROT"),
    *("a satellite image of an airport_runway!", "the ship  sails", "ein Käfer aus Köln", "7 × 8"),
)


@dataclass(frozen=True)
class Exported:
    """The files of an export, and how they were compared with the run or the encoder."""

    folder: Path
    files: tuple[str, ...]
    # Of a graph: images, same answers, largest difference. Of towers: agreement on "images" and "texts".
    checked: Any  # None without a graph


def export_run(
    run: Path,
    folder: Path,
    *,
    onnx: bool = False,
    overwrite: bool = False,
    progress: Progress = no_progress,
    **options: Unpack[LoadOptions],
) -> Exported:
    """Write a run for programs without promptboost.

    ``classifier.json`` describes the files; ``classifier.safetensors`` and ``classifier.npz`` hold the
    class matrix. With `onnx`, ``model.onnx`` also has the image encoder; nothing is written unless it
    predicts as the run does.
    """
    from safetensors.numpy import save

    home = RunFolder(run)
    home.check_readable()
    _check_free(folder, overwrite)
    classifier = open_classifier(run, progress=progress, **options)
    head, names = classifier.head, classifier.class_names
    matrix = np.float32(head.factor / head.rounds) * head.matrix
    encoder_: Any = classifier.encoder
    about = _about(classifier, head)
    facts = {"class_names": json.dumps(list(names), ensure_ascii=False)}
    arrays = io.BytesIO()
    np.savez(arrays, matrix=matrix, class_names=np.array(names, dtype=np.str_))
    files = {
        "classifier.safetensors": save({"matrix": np.ascontiguousarray(matrix)}, metadata=facts),
        "classifier.npz": arrays.getvalue(),
        "ensemble.json": classifier.ensemble.to_json().encode("utf-8"),
    }
    if onnx:
        tower = graph_encoder(encoder_)
        with stage(progress, f"writing the image tower of {encoder_.id} as a graph"):
            graph = tower.image_graph()
            facts = {
                "producer": "promptboost",
                "encoder": encoder_.id,
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


def export_encoder(
    name: str, folder: Path, *, overwrite: bool = False, progress: Progress = no_progress
) -> Exported:
    """Write an encoder as ONNX towers, which ``onnx:FOLDER`` loads without torch.

    Nothing is written unless the towers embed images and texts as the encoder does.
    """
    _check_free(folder, overwrite)
    with stage(progress, f"loading {name}"):
        encoder = load_encoder(name, device="cpu")
    with stage(progress, f"writing the towers of {name}"):
        files = onnx_files(encoder)
    with writing(folder, "export"), TemporaryDirectory(dir=folder, prefix=".export-") as temporary:
        for file, content in files.items():
            path = Path(temporary, file)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        with stage(progress, "checking the towers"):
            towers = load_encoder(f"onnx:{temporary}")
            images = _made_up()
            pairs = {
                "images": (encoder.encode_images(images), towers.encode_images(images)),
                "texts": (encoder.encode_texts(_TEXTS), towers.encode_texts(_TEXTS)),
            }
        checked = {kind: agreement(*rows) for kind, rows in pairs.items()}
        least = min(result["minimum_cosine"] for result in checked.values())
        if least < _LEAST_COSINE:
            raise EncoderError(
                f"the towers do not embed as {name} does: the smallest cosine is {least:.4f}; nothing is "
                "written"
            )
        for file in files:
            (folder / file).parent.mkdir(exist_ok=True)
            os.replace(Path(temporary, file), folder / file)
    return Exported(folder, tuple(files), checked)


def agreement(ours: UnitRows, theirs: UnitRows) -> dict[str, float]:
    """Compare embeddings of the same inputs: their number, smallest cosine and largest difference."""
    return {
        "inputs": len(ours),
        "minimum_cosine": float((ours * theirs).sum(axis=1, dtype=np.float64).min()),
        "largest_difference": float(np.abs(ours - theirs).max()),
    }


def _check_free(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not overwrite and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise RunError(f"{folder} exists; add --overwrite to write into it, or choose another name")


def _about(classifier: PromptClassifier, head: Head) -> dict[str, Any]:
    """Return the content of ``classifier.json``; fields of a graph are None."""
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


def _images(home: RunFolder, progress: Progress) -> "tuple[str, list[Image]]":
    """Return images for the comparison: those of the run if they exist, else noise."""
    try:
        task = load_task(home.source, home.settings, progress=progress)
        images = [image.open() for image in (*task.held_out.images, *task.learn.images)[:CHECKED]]
        if images:
            return "of the run", images
    except (PromptBoostError, OSError):
        pass
    return "made up", _made_up()


def _made_up() -> "list[Image]":
    """Draw images of noise at many sizes."""
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
    """Compare a graph with the run on images; raise if their predictions differ."""
    from promptboost.encoders.runtime import onnx_session

    which, images = given
    session = onnx_session(model)
    differences, same = [0.0], 0
    for start in range(0, len(images), _AT_ONCE):
        batch = images[start : start + _AT_ONCE]
        ours = np.asarray(classifier.encoder.encode_images(batch)) @ matrix.T
        pixels = np.stack([tower.pixels(image) for image in batch])
        (theirs,) = session.run(["logits"], {"pixels": pixels})
        differences.append(float(np.abs(ours - theirs).max()))
        same += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        advance(len(batch))
    largest = max(differences)
    if same < len(images) or largest > TOLERANCE:
        raise EncoderError(
            f"the graph does not predict as the run does: {len(images) - same} of {len(images)} "
            f"predictions differ, logits by up to {largest:.2g}; nothing is written"
        )
    return {
        "images": len(images),
        "images_are": which,
        "same_answers": same,
        "largest_difference": largest,
    }

"""What is exported answers as the run does, without promptboost."""

import hashlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

import promptboost
from promptboost.boosting.residual import Residual
from promptboost.cli import main
from promptboost.encoders import load_encoder
from promptboost.encoders.graph import graph_encoder
from promptboost.errors import EncoderError, RunError
from promptboost.model import PromptClassifier, PromptEnsemble, Round
from promptboost.progress import ProgressBars
from promptboost.run import export
from promptboost.run.export import export_run
from tests.encoders.openclip.tiny_models import TINY, save_tiny_models

EXAMPLE = Path(__file__).parents[2] / "examples/javascript"
BANKS = {
    "cat": {"a photo of a cat.": 2, "a tabby asleep on a sofa.": 1},
    "ship": {"a photo of a ship.": 1},
    "tool": {"a hammer.": 1, "a pair of pliers.": 3},
}


def images(count=12, seed=3):
    rng = np.random.default_rng(seed)
    sides = rng.integers(40, 300, size=(count, 2))
    return [
        Image.fromarray(rng.integers(0, 256, (int(h) // 8, int(w) // 8, 3), dtype=np.uint8)).resize(
            (int(w), int(h))
        )
        for h, w in sides
    ]


def saved(folder, encoder):
    """A classifier with a residual, saved as a run's text and head are."""
    ensemble = PromptEnsemble(
        tuple(BANKS),
        (Round("a photo of a {}.", BANKS, 0.0, 0.1),),
        encoder_id=encoder.id,
        logit_scale=30.0,
    )
    head = ensemble.embed(encoder)
    V = np.random.default_rng(0).standard_normal(head.weights.shape)
    head = head.with_residual(Residual(V, text_scale=25.0))
    PromptClassifier(ensemble, encoder, head, cache=False).save(folder)
    return folder


def softmax(logits):
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return chances / chances.sum(axis=1, keepdims=True)


def test_the_matrix_gives_the_probabilities(fitted):
    done = export_run(fitted / "run", fitted / "out")
    classifier = promptboost.load(fitted / "run")
    pictures = images()
    rows = classifier.embedder.encode_images(pictures)
    with safe_open(fitted / "out/classifier.safetensors", "numpy") as file:
        matrix, names = file.get_tensor("matrix"), json.loads(file.metadata()["class_names"])
    with np.load(fitted / "out/classifier.npz") as arrays:
        assert (arrays["matrix"] == matrix).all()
        assert arrays["class_names"].tolist() == names == list(classifier.class_names)
    assert softmax(rows @ matrix.T) == pytest.approx(classifier.predict_proba(pictures), abs=1e-5)
    about = json.loads((fitted / "out/classifier.json").read_text())
    assert about["class_names"] == names
    assert about["encoder"]["id"] == "fake:32-0"
    for name, digest in about["files"].items():
        assert hashlib.sha256((fitted / "out" / name).read_bytes()).hexdigest() == digest
    assert sorted(path.name for path in (fitted / "out").iterdir()) == sorted(done.files)


def test_without_the_residual(fitted):
    export_run(fitted / "run", fitted / "out", text_only=True)
    classifier = promptboost.load(fitted / "run", text_only=True)
    rows = classifier.embedder.encode_images(images())
    with np.load(fitted / "out/classifier.npz") as arrays:
        matrix = arrays["matrix"]
    assert softmax(rows @ matrix.T) == pytest.approx(classifier.predict_proba(rows), abs=1e-5)


def test_an_encoder_without_a_graph_and_a_folder_in_use_are_refused(fitted):
    with pytest.raises(EncoderError, match="cannot be written as ONNX"):
        export_run(fitted / "run", fitted / "out", onnx=True)
    assert not (fitted / "out").exists()
    (fitted / "out").mkdir()
    (fitted / "out/notes.txt").write_text("mine")
    with pytest.raises(RunError, match="--overwrite"):
        export_run(fitted / "run", fitted / "out")
    export_run(fitted / "run", fitted / "out", overwrite=True)
    assert (fitted / "out/notes.txt").read_text() == "mine"


@pytest.fixture(scope="module")
def conse():
    return load_encoder("conse:lite0")


@pytest.fixture(scope="module")
def conse_export(conse, tmp_path_factory):
    folder = tmp_path_factory.mktemp("conse")
    run = saved(folder / "run", conse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", terminal := io.StringIO())
        terminal.isatty = lambda: True
        progress = ProgressBars()
        done = export_run(run, folder / "out", onnx=True, cache=False, progress=progress)
    assert "writing the image tower of conse:lite0 as a graph …" in terminal.getvalue()
    assert "checking the graph: " in terminal.getvalue()
    return run, folder / "out", done


def test_a_conse_graph_answers_as_the_run(conse, conse_export):
    run, folder, done = conse_export
    assert done.checked["same_answers"] == done.checked["images"] == 100
    assert done.checked["largest_difference"] < 1e-3
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    pictures = images()
    pixels = np.stack([graph_encoder(conse).pixels(image) for image in pictures])
    embeddings, logits, chances = session.run(
        ["embeddings", "logits", "probabilities"], {"pixels": pixels}
    )
    assert embeddings == pytest.approx(conse.encode_images(pictures), abs=1e-5)
    ours = promptboost.load(run, conse, cache=False).predict_proba(pictures)
    assert chances == pytest.approx(ours, abs=1e-4)
    assert softmax(logits) == pytest.approx(chances, abs=1e-5)
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    assert names == list(BANKS)


def test_the_graph_answers_as_its_text_evaluated_by_hand_and_as_predict(
    conse, conse_export, tmp_path, capsys
):
    run, folder, _ = conse_export
    for number, image in enumerate(images(seed=11)):
        image.save(tmp_path / f"{number:02}.png")
    pictures = [Image.open(path) for path in sorted(tmp_path.glob("*.png"))]
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    pixels = np.stack([graph_encoder(conse).pixels(image) for image in pictures])
    rows, chances = session.run(["embeddings", "probabilities"], {"pixels": pixels})
    # The mean of the sentences in the file that was exported, and the residual that was made up.
    (round_,) = json.loads((folder / "ensemble.json").read_text())["rounds"]
    means = []
    for bank in round_["banks"].values():
        texts = conse.encode_texts(list(bank)).astype(np.float64)
        texts /= np.linalg.norm(texts, axis=1, keepdims=True)
        means.append(np.average(texts, axis=0, weights=list(bank.values())))
    residual = np.random.default_rng(0).standard_normal((3, rows.shape[1]))
    by_hand = softmax(rows @ (25.0 * np.stack(means) + residual).T)
    assert chances == pytest.approx(by_hand, abs=1e-4)
    with pytest.raises(SystemExit):
        main(["predict", str(run), str(tmp_path), "--top-k", "3", "--json", "--no-cache"])
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    for answer, row in zip(predictions, by_hand, strict=True):
        shown = {top["class"]: top["probability"] for top in answer["top"]}
        assert shown == pytest.approx(dict(zip(BANKS, row, strict=True)), abs=1e-4)


def test_the_graph_runs_without_torch_and_promptboost(conse_export):
    _, folder, _ = conse_export
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['promptboost'] = None\n"
        "import numpy, onnxruntime\n"
        f"session = onnxruntime.InferenceSession({str(folder / 'model.onnx')!r})\n"
        "pixels = numpy.zeros((3, 224, 224, 3), dtype=numpy.uint8)\n"
        "(chances,) = session.run(['probabilities'], {'pixels': pixels})\n"
        "assert chances.shape == (3, 3), chances.shape\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_graph_that_answers_otherwise_is_not_written(conse, tmp_path, monkeypatch):
    run = saved(tmp_path / "run", conse)
    monkeypatch.setattr(export, "CHECKED", 4)
    real = export.classifier_graph
    monkeypatch.setattr(
        export,
        "classifier_graph",
        lambda graph, matrix, *rest: real(graph, np.roll(matrix, 1, axis=0), *rest),
    )
    with pytest.raises(EncoderError, match="does not predict as the run does"):
        export_run(run, tmp_path / "out", onnx=True, cache=False)
    assert not (tmp_path / "out").exists()


def test_an_open_clip_graph_answers_as_the_run(tmp_path, monkeypatch):
    pytest.importorskip("open_clip")
    monkeypatch.setattr(export, "CHECKED", 20)
    files = save_tiny_models(tmp_path)
    encoder = load_encoder(f"{TINY}@{files[TINY]}")
    run = saved(tmp_path / "run", encoder)
    done = export_run(run, tmp_path / "out", onnx=True, encoder=encoder.id, cache=False)
    assert done.checked["same_answers"] == 20
    assert done.checked["largest_difference"] < 1e-3
    about = json.loads((tmp_path / "out/classifier.json").read_text())
    assert about["preprocessing"]["size"] == [32, 32]


def test_another_language_answers_the_same(conse, conse_export, tmp_path):
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no Node.js is installed")
    run, folder, _ = conse_export
    for name in ("classify.mjs", "package.json"):
        shutil.copy(EXAMPLE / name, tmp_path)
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    try:
        subprocess.run(install, cwd=tmp_path, check=True, timeout=240, capture_output=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("the packages of the example cannot be installed here")
    picture = images(1)[0]
    picture.save(tmp_path / "one.png")
    done = subprocess.run(
        ["node", "classify.mjs", str(folder), "one.png"],
        cwd=tmp_path,
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    answer = json.loads(done.stdout)
    ((name, chance),) = promptboost.load(run, conse, cache=False).top_k(picture, 1)[0]
    assert answer["answer"] == name
    assert answer["probability"] == pytest.approx(chance, abs=0.1)  # another library scales pixels

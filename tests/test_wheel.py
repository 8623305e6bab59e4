"""The wheel is whole: installed by itself, it fits and writes a report; so is the archive of sources."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from sysconfig import get_path

import pytest
from PIL import Image

from promptboost import __version__

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[1]


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, and the archive of sources."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (wheel,), (sources,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sources


def test_every_file_of_the_package_is_in_both(built):
    package = {
        str(file.relative_to(ROOT / "src"))
        for file in (ROOT / "src" / "promptboost").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert "promptboost/py.typed" in package
    wheel, sources = built
    assert f"-{__version__}" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    assert package <= names
    assert {name.split("/")[0] for name in names} == {
        "promptboost",
        f"promptboost-{__version__}.dist-info",
    }
    with tarfile.open(sources) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {f"src/{name}" for name in package} <= inside
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= inside
    assert not any(name.startswith((".venv", "dist")) for name in inside)


def test_what_is_installed_works_by_itself(built, tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", built[0])
    # What it depends on is that of the tests, after its own place: only promptboost is new.
    (site / "others.pth").write_text(f"{get_path('purelib')}\n{get_path('platlib')}\n")
    for name, color in {"fire": "red", "ice": "blue"}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for size in (8, 9, 10):
            Image.new("RGB", (size, 8), color).save(tmp_path / "photos" / name / f"{size}.png")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env["NUMBA_DISABLE_JIT"] = "1"  # to compile for a new place takes longer than all the rest
    command = tmp_path / "env" / "bin" / "promptboost"
    here = {"cwd": tmp_path, "env": env}
    assert run(command, "--version", **here).strip() == f"promptboost {__version__}"
    where = run(python, "-c", "import promptboost; print(promptboost.__file__)", **here)
    assert Path(where.strip()).is_relative_to(site)
    fit = ("fit", "photos", "-o", "run", "--encoder", "fake:32-0", "--shots", "2")
    assert "report" in run(command, *fit, **here)
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert "fire" in run(command, "predict", "run", "photos/fire/8.png", **here)

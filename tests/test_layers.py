"""The core stands without the wings, and commands import little (see also [tool.importlinter])."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import promptboost
from tests.run.run_tools import write_images, write_sentences

PACKAGE = Path(promptboost.__file__).parent
ROOT = Path(__file__).parent.parent
WINGS = (
    *("methods", "compare", "paper", "quality", "llm", "serve", "workbench", "distributed"),
    *("hub.py", "trackers.py", "plot.py"),
)
# One or two files of each package of the core; all of them would take minutes.
CORE_TESTS = (
    "tests/data/test_shots.py",
    "tests/data/test_views.py",
    "tests/pool/test_build.py",
    "tests/pool/test_names.py",
    "tests/boosting/test_boost.py",
    "tests/boosting/test_grid.py",
    "tests/model/test_ensemble.py",
    "tests/model/test_head.py",
    "tests/training/test_ensembles.py",
    "tests/training/test_trainer.py",
)

# An estimator with each composer, saved and loaded; then a run, its report, and the command line.
FIT = """
import os
import sys
from pathlib import Path

import numpy as np

import promptboost
from promptboost import PromptBoostClassifier, load
from promptboost.cli import main
from promptboost.config import FitConfig
from promptboost.run.fit import fit_run

task, package = Path(sys.argv[1]), sys.argv[2]
assert Path(promptboost.__file__).parent == Path(package)
paths = sorted(map(str, (task / "images").glob("*/*.png")))
labels = [os.path.basename(os.path.dirname(path)) for path in paths]
for composer in ("greedy", "gradient"):
    classifier = PromptBoostClassifier(encoder="fake:32-0", composer=composer, n_rounds=2)
    classifier.fit(paths, labels).save(task / composer)
    expected = classifier.predict_proba(paths)
    assert np.allclose(load(task / composer).predict_proba(paths), expected, atol=1e-6)
settings = FitConfig(encoder="fake:32-0", rounds=2, shots=4, prompts=str(task / "sentences.json"))
fit_run(str(task / "images"), task / "run", settings)
main(["predict", str(task / "run"), paths[0], "-q"])
"""

IMPORTED = """
import json
import sys

from promptboost.cli import main

try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code
print(json.dumps([name for name in sys.modules]))
"""


@pytest.fixture
def core(tmp_path):
    """A copy of the package without its wings; what was compiled is copied, too."""
    package = tmp_path / "core" / "promptboost"
    shutil.copytree(PACKAGE, package)
    for wing in WINGS:
        path = package / wing
        path.unlink() if path.suffix else shutil.rmtree(path)
    return package


def run(core, *command):
    path = os.pathsep.join([str(core.parent), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_images_are_fitted_saved_loaded_and_predicted_without_wings(core, tmp_path):
    write_images(tmp_path / "images")
    write_sentences(tmp_path / "sentences.json")
    assert "0.png" in run(core, "-c", FIT, tmp_path, core)


@pytest.mark.slow
def test_the_tests_of_the_core_pass_without_wings(core):
    done = run(core, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *CORE_TESTS)
    assert " passed" in done


def test_predict_imports_little_and_nothing_compiled(fitted):
    image = next((fitted / "images").rglob("*.png"))
    printed = run(PACKAGE, "-c", IMPORTED, "predict", fitted / "run", image, "-q")
    modules = json.loads(printed.splitlines()[-1])
    assert len([name for name in modules if name.split(".")[0] == "promptboost"]) <= 65
    assert {"numba", "scipy", "sklearn", "torch", "pandas"}.isdisjoint(modules)

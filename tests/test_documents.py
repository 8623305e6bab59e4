"""What the documents show is run: a reader types it, and it works.

Models that have to be downloaded are exchanged for the fake encoder; nothing else is changed.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from promptboost import PromptBoostClassifier
from promptboost.config import read_scale
from tests.beside import PARTS, needs_beside
from tests.cli.cli_tools import call

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FAKE, OTHER = "fake:32-0", "fake:32-1"
COLOURS = {"cat": "red", "dog": "blue"}


def blocks(kind: str, page: str = README) -> list[str]:
    """Return the code of a page in one language, with encoders that are at hand."""
    found = re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [re.sub(r"ViT-L-14/\w+", OTHER, re.sub(r"ViT-B-32/\w+", FAKE, code)) for code in found]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with what README speaks of: photos, new images and sentences."""
    monkeypatch.chdir(tmp_path)
    for name, colour in COLOURS.items():
        for number in range(10):
            file = tmp_path / "photos" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16 + number, 16), colour).save(file)
    Path("new").mkdir()
    Image.new("RGB", (20, 20), "red").save("new.jpg")
    shutil.copy("new.jpg", "new/1.jpg")
    sentences = ", ".join(f'"{name}": ["a photo of a {name}."]' for name in COLOURS)
    Path("sentences.json").write_text(f"{{{sentences}}}", encoding="utf-8")
    return tmp_path


def images() -> list[str]:
    return [str(file) for file in sorted(Path("photos").glob("*/*"))]


def test_python_in_readme(here):
    """The estimator's block saves the run that the first block then loads."""
    loading, fitting = blocks("python")
    labels = [Path(path).parent.name for path in images()]
    names: dict[str, object] = {"paths": images(), "labels": labels, "new_paths": ["new.jpg"]}
    exec(fitting, names)
    # The sentence that README removes is in the bank, and not alone there.
    ensemble = names["clf"].ensemble_.add("cat", "a photo of a cat.").add("cat", "a tabby")
    PromptBoostClassifier.from_ensemble(ensemble, encoder=FAKE).save("run/")
    shown: dict[str, object] = {}
    exec(loading, shown)
    assert shown["edited"].class_names == ("cat", "dog", "fox")
    assert Path("edited.json").exists()


def test_commands_in_readme(here, capsys):
    """The block of commands, one after the other, as a shell would do it."""
    [code] = [block for block in blocks("sh") if "promptboost fit" in block]
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "promptboost"
        words = [
            file
            for word in words[1:]
            for file in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
        ]
        if words[0] in ("fit", "compare"):
            words += ["--encoder", FAKE]
        if words[0] == "compare":
            words += ["--shots", "1", "--seeds", "1"]
        if words[0] == "diff":
            shutil.copytree("run", "other-run")
        answer = call(capsys, *words)
        assert answer.code == 0, f"{line}\n{answer.err}"


def test_what_the_page_on_being_sure_shows(here, capsys):
    page = (ROOT / "docs/how-to/abstain.md").read_text(encoding="utf-8")
    [commands] = blocks("sh", page)
    for line in commands.splitlines():
        words = shlex.split(line)[1:]
        answer = call(capsys, *words, *(["--encoder", FAKE] if words[0] == "fit" else []))
        assert answer.code == 0, f"{line}\n{answer.err}"
    answers = []
    for code in blocks("python", page):
        names: dict[str, object] = {}
        exec(code, names)
        answers.append(names["answers"].tolist())
    assert answers[0] == answers[1]
    assert len(answers[0]) == 1


def test_the_page_on_editing_shows_images_that_are_there_and_small():
    page = ROOT / "docs/how-to/edit.md"
    named = re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(named) == 2
    for name in named:
        assert 10_000 < (page.parent / name).stat().st_size < 150_000


@pytest.mark.parametrize("page", ["explain", "export"])
def test_what_the_pages_on_a_fitted_run_show(here, capsys, page):
    text = (ROOT / f"docs/how-to/{page}.md").read_text(encoding="utf-8")
    [commands] = blocks("sh", text)
    for line in commands.splitlines():
        words = shlex.split(line)[1:]
        answer = call(capsys, *words, *(["--encoder", FAKE] if words[0] == "fit" else []))
        assert answer.code == 0, f"{line}\n{answer.err}"
    for code in blocks("python", text):
        exec(code, {})
        assert "rather than" in capsys.readouterr().out


def test_what_the_page_on_many_images_shows_in_python(here, capsys):
    text = (ROOT / "docs/how-to/many-images.md").read_text(encoding="utf-8")
    answer = call(capsys, "fit", "photos", "-o", "run", "--encoder", FAKE, "--shots", 2)
    assert answer.code == 0, answer.err
    [code] = blocks("python", text)
    exec(code, {})
    assert len(Path("answers.jsonl").read_text().splitlines()) == 20
    [toml] = blocks("toml", text)
    Path("settings.toml").write_text(toml)
    assert read_scale("settings.toml") == {"on": "ray", "workers": 8}


def test_targets_in_readme_and_contributing_are_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake (\w+)(?=`|\s+#)", text))
    assert targets >= {"demo", "test", "fuzz"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_in_contributing_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = text[text.index("## The walk") : text.index("## House rules")]
    files = re.findall(r"`([\w/]+\.py)`", walk)
    assert len(files) > 20
    assert [name for name in files if not (ROOT / "src" / "promptboost" / name).is_file()] == []
    for name in re.findall(r"\((docs/[\w/-]+\.md)\)", README + text):
        assert (ROOT / name).is_file(), name


@needs_beside
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_what_is_beside_the_repository_is_whole(part):
    """Tests that read it would be about nothing if it were empty."""
    pattern, least = PARTS[part]
    assert sum(1 for _ in part.glob(pattern)) >= least, f"{part} lacks files {pattern}"

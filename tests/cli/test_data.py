import shutil

import pytest

from promptboost.data.benchmarks import BENCHMARKS
from tests.beside import PHOTOGRAPHS, RELEASED, needs_beside
from tests.cli.cli_tools import call
from tests.data.benchmarks.benchmark_tools import tiny, write, write_tree


@pytest.fixture
def textures(tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "dtd", tiny("dtd"))
    return write_tree(tmp_path, "dtd")


def test_help_names_every_benchmark(capsys):
    answer = call(capsys, "data", "check", "--help")
    said = answer.out.replace(",", " ").replace(".", " ").split()
    assert set(BENCHMARKS) <= set(said)
    assert call(capsys, "data").out == call(capsys, "data", "--help").out


def test_a_complete_benchmark(capsys, textures):
    answer = call(capsys, "data", "check", "dtd", textures)
    assert answer.code == 0
    assert "DTD in" in answer.out
    assert answer.out.rstrip().endswith(f"fit dtd:{textures} -o RUN")
    assert ["train", "6", "6", "6"] in [line.split() for line in answer.out.splitlines()]
    assert "how to get it" not in answer.out
    found = call(capsys, "data", "check", "DTD", textures.parent, "--json").json
    assert found["complete"] is True
    assert found["benchmark"] == "dtd"
    assert found["counts"]["test"] == {"published": 4, "listed": 4, "there": 4}
    assert found["problems"] == []


def test_a_part_is_named_and_told_how_to_get_the_rest(capsys, textures):
    (textures / "images" / "dotted" / "dotted_0004.jpg").unlink()
    answer = call(capsys, "data", "check", "dtd", textures)
    assert answer.code == 2
    assert "1. 1 of 12 listed images are missing; for example dotted/dotted_0004.jpg" in answer.out
    assert "https://www.robots.ox.ac.uk/~vgg/data/dtd/ → dtd/images" in answer.out
    found = call(capsys, "data", "check", "dtd", textures, "--json")
    assert found.code == 2
    assert found.json["complete"] is False
    assert found.json["counts"]["test"]["there"] == 3


def test_cut_off_images_are_a_problem(capsys, textures):
    file = textures / "images" / "dotted" / "dotted_0004.jpg"
    file.write_bytes(file.read_bytes()[:-30])
    answer = call(capsys, "data", "check", "dtd", textures)
    assert answer.code == 2
    assert "1. 1 file cut off or damaged: dotted/dotted_0004.jpg" in answer.out


def test_what_is_not_known_is_a_dash(capsys, tmp_path):
    answer = call(capsys, "data", "check", "dtd", tmp_path)
    assert ["test", "1,692", "–", "–"] in [line.split() for line in answer.out.splitlines()]
    found = call(capsys, "data", "check", "dtd", tmp_path, "--json").json
    assert found["counts"]["test"] == {"published": 1692, "listed": None, "there": None}


def test_a_split_file_from_elsewhere(capsys, textures, tmp_path):
    split = (textures / "split_zhou_DescribableTextures.json").rename(tmp_path / "a split.json")
    answer = call(capsys, "data", "check", "dtd", textures)
    assert answer.code == 2
    assert "split   unknown" in answer.out
    assert "1. split_zhou_DescribableTextures.json is missing" in answer.out
    answer = call(capsys, "data", "check", "dtd", textures, "--split", split)
    assert answer.code == 0
    assert f"fit 'dtd:{textures}@{split}' -o RUN" in answer.out


def test_names_and_folders_that_are_not_there(capsys, tmp_path):
    answer = call(capsys, "data", "check", "cifar", tmp_path)
    assert answer.code == 2
    assert answer.err.startswith("error: there is no benchmark 'cifar'; there are: imagenet")
    answer = call(capsys, "data", "check", "dtd", tmp_path / "gone")
    assert answer.code == 2
    assert "is not a folder" in answer.err


def test_fit_refuses_a_part(capsys, textures, tmp_path):
    (textures / "images" / "dotted" / "dotted_0004.jpg").unlink()
    answer = call(capsys, "fit", f"dtd:{textures}", "-o", tmp_path / "run")
    assert answer.code == 2
    assert "error: DTD in" in answer.err
    assert "promptboost data check dtd" in answer.err
    assert not (tmp_path / "run").exists()


def test_names_of_files_cannot_command_the_terminal(capsys, textures):
    shutil.rmtree(textures / "images")
    write(textures, ["images/evil\x07.jpg"])
    answer = call(capsys, "data", "check", "dtd", textures)
    assert "evil" in answer.out
    assert "\x07" not in answer.out


@needs_beside
def test_real_photographs(capsys):
    split = RELEASED / "oxford_pets" / "split_zhou_OxfordPets.json"
    answer = call(capsys, "data", "check", "oxford_pets", PHOTOGRAPHS, "--split", split)
    assert answer.code == 2
    assert "of 7,349 listed images are missing" in answer.out
    assert str(PHOTOGRAPHS / "oxford_pets") in answer.out

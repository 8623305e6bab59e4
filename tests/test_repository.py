"""What stands around the code agrees with it: versions, extras, workflows, citation."""

import re
import tomllib
from pathlib import Path

import pytest

from promptboost import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere():
    assert PROJECT["version"] == __version__
    assert re.search(r"^version: (.*)$", read("CITATION.cff"), re.M)[1] == __version__
    assert re.search(r"^## (\d\S*) \(", read("CHANGELOG.md"), re.M)[1] == __version__


def test_extras_are_named_for_what_they_give():
    encoders = {"clip", "hf", "offline", "onnx", "st"}
    assert {*encoders, "serve", "ray", "llm", "hub", "plot", "all"} <= set(EXTRAS)
    (everything,) = EXTRAS["all"]
    named = set(re.search(r"\[(.*)\]", everything)[1].split(","))
    assert {*encoders, "serve", "ray", "llm", "hub", "plot"} <= named <= set(EXTRAS)
    for text in (read("README.md"), read("Makefile"), read(".github/workflows/ci.yml")):
        for group in re.findall(r"'(?:\.|promptboost)\[([a-z,-]+)\]'", text):
            assert set(group.split(",")) <= set(EXTRAS), group


def test_errors_name_extras_that_there_are():
    sources = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    for group in re.findall(r"promptboost\[([a-z,-]+)\]", sources):
        assert set(group.split(",")) <= set(EXTRAS), group


def test_pythons_are_those_of_the_workflow():
    supported = {
        name.rsplit(" ", 1)[1]
        for name in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d+$", name)
    }
    (matrix,) = re.findall(r"python: \[(.*)\]", read(".github/workflows/ci.yml"))
    assert set(re.findall(r'"(3\.\d+)"', matrix)) == supported
    assert PROJECT["requires-python"] == f">={min(supported, key=lambda v: int(v[2:]))}"


def test_workflows_and_citation_are_yaml():
    yaml = pytest.importorskip("yaml")
    flow = yaml.safe_load(read(".github/workflows/ci.yml"))
    assert {"lint", "tests", "lowest", "docs", "wheel"} <= set(flow["jobs"])
    citation = yaml.safe_load(read("CITATION.cff"))
    assert [one["family-names"] for one in citation["preferred-citation"]["authors"]] == [
        *("Jin", "Sung", "Mun", "Kim", "Ok")
    ]
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        yaml.safe_load(form.read_text(encoding="utf-8"))


def test_tests_and_targets_that_the_workflow_names_are_there():
    text = read(".github/workflows/ci.yml")
    for path in re.findall(r"\btests/[\w/.]+", text):
        assert (ROOT / path).exists(), path


def test_constraints_hold_what_the_project_asks_for():
    requirements = pytest.importorskip("packaging.requirements")
    names = pytest.importorskip("packaging.utils")
    lines = [line for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    pinned = dict(line.split("==") for line in lines)  # and no address of a registry among them
    for group in (PROJECT["dependencies"], *EXTRAS.values()):
        for one in map(requirements.Requirement, group):
            version = pinned.get(names.canonicalize_name(one.name))
            assert version is None or one.specifier.contains(version), one
    assert {"numpy", "torch", "open-clip-torch", "pytest"} <= set(pinned)

import shutil

from promptboost.model import PromptEnsemble
from tests.cli.cli_tools import call


def test_two_runs(capsys, fitted):
    shutil.copytree(fitted / "run", fitted / "other")
    same = call(capsys, "diff", fitted / "run", fitted / "other")
    assert same.code == 0
    assert same.out.startswith("no difference: ")
    edited = PromptEnsemble.load(fitted / "run/ensemble.json").add("sea", "a calm lake", 3)
    edited = edited.add_class("owl", ["an owl"])
    edited.save(fitted / "edited.json")
    answer = call(capsys, "diff", fitted / "run", fitted / "edited.json")
    assert answer.code == 0
    assert "class added: owl" in answer.out
    assert "  +  " in answer.out
    assert "a calm lake" in answer.out
    assert "  ~  " in answer.out
    found = call(
        capsys, "diff", fitted / "run/ensemble.json", fitted / "edited.json", "--json"
    ).json
    assert list(found["classes"]) == ["sea"]
    assert list(found["classes"]["sea"]["added"]) == ["a calm lake"]
    assert found["added_classes"] == ["owl"]
    back = call(capsys, "diff", fitted / "edited.json", fitted / "run", "--class", "sea", "--json")
    assert list(back.json["classes"]["sea"]["removed"]) == ["a calm lake"]
    assert back.json["removed_classes"] == []


def test_what_cannot_be_compared(capsys, fitted):
    gone = call(capsys, "diff", fitted / "run", fitted / "none")
    assert (gone.code, "does not exist" in gone.err) == (2, True)
    wrong = call(capsys, "diff", fitted / "run", fitted / "run", "--class", "lake")
    assert (wrong.code, "no class 'lake'" in wrong.err) == (2, True)

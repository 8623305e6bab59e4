"""``promptboost explain`` and ``edit``, as they are typed."""

import json
import re

import pytest

from promptboost.cli import main
from promptboost.model import PromptEnsemble
from promptboost.run.fit import fit_run
from tests.run.run_tools import request, write_images, write_sentences


@pytest.fixture
def run(tmp_path, monkeypatch):
    write_images(tmp_path / "images")
    write_sentences(tmp_path / "sentences.json")
    fit_run(**request(tmp_path, copies=40))
    monkeypatch.chdir(tmp_path)
    return "run"


def typed(capsys, *arguments):
    with pytest.raises(SystemExit) as leaving:
        main(list(arguments))
    out, err = capsys.readouterr()
    return leaving.value.code, out, err


def test_an_image_is_explained(run, capsys):
    code, out, _ = typed(capsys, "explain", run, "images/sea/1.png", "--json")
    record = json.loads(out)
    (why,) = record["images"]
    total = sum(group["value"] for group in why["groups"])
    assert code == 0
    assert total == pytest.approx(why["margin"], abs=1e-9)
    assert why["image"] == "images/sea/1.png"
    code, out, _ = typed(capsys, "explain", run, "images/sea/1.png", "--against", "night")
    assert code == 0
    assert "rather than night" in out
    assert re.search(r"\n  Unlike night\n    [+-]\d\.\d\d  ", out)
    sentences = sum(len(group.get("contributions", ())) for group in why["groups"])
    assert " more\n" in out
    assert sentences > 6
    code, out, _ = typed(capsys, "explain", run, "images/sea/1.png", "--all")
    assert len(re.findall(r"\n {4}[+-]", out)) == sentences + bool(why["residual"])


def test_figures_are_written_into_a_page(run, capsys, tmp_path):
    code, out, _ = typed(capsys, "explain", run, "images/sea", "--html", "why.html")
    page = (tmp_path / "why.html").read_text()
    assert code == 0
    assert "why.html" in out
    assert page.count("<figure") == 8
    assert "data:image/jpeg;base64," in page


def test_an_image_that_cannot_be_read_is_a_note(run, capsys, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    code, out, err = typed(capsys, "explain", run, "broken.png", "images/sea/1.png")
    assert code == 0
    assert "broken.png" in err
    assert "images/sea/1.png" in out
    code, _, _ = typed(capsys, "explain", run, "broken.png")
    assert code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "run"], "give images to explain, or --held-out"),
        (["explain", "run", "images/sea/1.png", "--against", "cow"], "there is no class 'cow'"),
        (["explain", "run", "--held-out", "images/sea/1.png"], "combine it only with --data"),
        (["explain", "run", "images/sea/1.png", "--data", "x"], "combine it with --held-out"),
        (["explain", "nowhere", "images/sea/1.png"], "nowhere does not exist"),
        (["edit", "run", "-o", "run2"], "no edit given"),
        (["edit", "run", "-o", "run2", "--remove", "nothing like it"], "has no prompt"),
        (["edit", "run", "-o", "run2", "--add", "moo"], "does not begin with a class"),
        (["edit", "nowhere", "-o", "run2", "--remove", "x"], "nowhere does not exist"),
        (["edit", "run", "-o", "run", "--add", "sea=waves"], "another name"),
    ],
)
def test_what_is_wrong_is_said(run, capsys, arguments, message):
    code, _, err = typed(capsys, *arguments)
    assert code == 2
    assert message in err


def test_a_mistake_is_found_edited_and_measured(run, capsys):
    code, out, _ = typed(capsys, "explain", run, "--held-out", "--json")
    record = json.loads(out)
    assert code == 0
    assert record["looks"] == 1
    sentence = record["sentences"][0]
    spec = f"{sentence['class']}={sentence['prompt']}"
    code, out, _ = typed(
        capsys, "edit", run, "-o", "run2", "--remove", spec, "--add", "sea=waves=0.2", "--json"
    )
    record = json.loads(out)
    assert code == 0
    assert record["parent"] == "run"
    assert record["effect"]["images"] == record["edit"]["images"]
    text = PromptEnsemble.load("run2/ensemble.json")
    assert sentence["prompt"] not in text.prompts(sentence["class"])
    assert text.prompts("sea")["waves"] == pytest.approx(0.2, abs=1e-3)
    code, out, _ = typed(
        capsys, "edit", "run2", "-o", "run3", "--add-class", "sun=a sun", "--add-class", "sun=light"
    )
    assert code == 0
    assert "added the class sun with 2 sentences" in out
    code, out, _ = typed(capsys, "explain", "run3", "--held-out")
    assert code == 0
    assert "measured 4 times; a third" in out


def test_hostile_names_do_nothing_to_a_terminal(run, capsys):
    code, out, err = typed(capsys, "edit", run, "-o", "run2", "--add", "sea=\x1b[2Jwaves")
    assert "\x1b" not in out + err
    assert code in (0, 2)


def test_held_out_images_are_measured_again_and_the_last_part_at_the_end(run, capsys):
    typed(
        capsys, "edit", run, "-o", "run2", "--rename-class", "leaf=grass", "--drop-class", "night"
    )
    code, out, _ = typed(capsys, "evaluate", "run2", "--held-out", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["held_out"] == {"part": "shown", "looks": 2, "final_looks": 0}
    code, out, _ = typed(capsys, "evaluate", "run2", "--held-out", "--final", "--json")
    final = json.loads(out)
    assert code == 0
    assert final["held_out"] == {"part": "final", "looks": 2, "final_looks": 1}
    assert shown["images"] + final["images"] == 12  # without those of the class that was dropped
    assert {row["class"] for row in final["per_class"]} == {"ember", "grass", "sea"}
    code, out, _ = typed(capsys, "evaluate", "run2", "--held-out", "--final")
    assert "held out and kept back, measured 2 times" in out
    for arguments in (["evaluate", run], ["evaluate", run, "images", "--final"]):
        code, _, err = typed(capsys, *arguments)
        assert code == 2
        assert "--held-out" in err

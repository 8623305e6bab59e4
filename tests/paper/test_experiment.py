"""Cells of the paper: every plan runs, nothing twice, and what has changed is measured again."""

import json
import os
import shutil

import pytest
from PIL import Image

from promptboost.compare import cell_worker
from promptboost.compare.cell_worker import code_of
from promptboost.compare.cells import CompareRequest, ResultLog
from promptboost.compare.compare import compare
from promptboost.config import FitConfig
from promptboost.data.benchmarks import BENCHMARKS
from promptboost.distributed.engine import Placement, Share
from promptboost.encoders import load_encoder
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import DataError, EncoderError, PoolError, RunError
from promptboost.methods import make_method
from promptboost.paper import runner as room
from promptboost.paper.claims import Evidence
from promptboost.paper.needs import find_needs
from promptboost.paper.plans import PLANS, chosen, find_plan
from promptboost.paper.runner import (
    CELLS,
    KEY,
    PlanRunner,
    find_data,
    find_sentences,
)
from promptboost.paper.sheet import make_sheet, write_sheet
from promptboost.pool import build_pool, save_pool
from tests.data.benchmarks.benchmark_tools import tiny, write_tree
from tests.paper.paper_tools import METHODS, SOURCE, TARGET, asked, write_task


@pytest.fixture
def task(tmp_path):
    write_task(tmp_path)
    return tmp_path


def ran(request, name):
    plan = chosen(find_plan(name), request.choice)
    return make_sheet(plan, PlanRunner(request).run(plan))


def test_every_plan_runs_and_shares_its_cells(task):
    request = asked(task)
    runner = PlanRunner(request)
    done = {}
    for name, plan in PLANS.items():
        plan = chosen(plan, request.choice)
        measured = runner.run(plan)
        done[name] = measured.done
        sheet = make_sheet(plan, measured)
        files = {file.name for file in write_sheet(sheet, request)}
        assert {"table.md", "table.csv", "cells.csv"} <= files
        assert ("figure.svg" in files) == (plan.entry.kind == "figure"), name
        assert not measured.reasons, name
        assert all(number.mean is not None for number in sheet.numbers)
        assert all(number.paper is None for number in sheet.numbers)  # another experiment
        assert plan.at_hand in (request.out / name / "table.md").read_text(encoding="utf-8")
    assert done["main"]
    assert done["view-factor"]
    # What another table has measured is there already.
    assert done["main-shots"] == done["transfer-vit-h"] == done["larger-targets"] == 0
    again = PlanRunner(request)
    assert sum(again.run(chosen(plan, request.choice)).done for plan in PLANS.values()) == 0


def test_a_table_says_where_zero_shot_is_measured_on_other_images(task):
    request = asked(task, methods=("zero-shot", "tpb?rounds=1"), shots=(1,), seeds=(1,))
    said = "Without test images of their own: colors."
    assert any(line.startswith(said) for line in ran(request, "pez-failure").notes())
    whole = task / "data" / "colors"
    for number in range(6):
        split = "test" if number % 2 else "train"
        for file in list(whole.glob(f"[a-z]*/{number}.png")):
            os.renames(file, task / "data" / "split" / split / file.parent.name / file.name)
    shutil.copy(task / "pools" / "colors.jsonl", task / "pools" / "split.jsonl")
    divided = asked(task, methods=("zero-shot", "tpb?rounds=1"), shots=(1,), datasets=("split",))
    assert not any("test images" in line for line in ran(divided, "pez-failure").notes())


def test_parts_are_merged_only_when_all_are_there(task):
    request = asked(task, methods=("zero-shot", "tpb?rounds=1"), shots=(1,), seeds=(1, 2))
    plan = chosen(find_plan("pez-failure"), request.choice)

    def run(**placement):
        return PlanRunner(request, placement=Placement(**placement)).run(plan)

    run(share=Share(0, 2))
    with pytest.raises(RunError, match=r"of \d+ cells are not in .* yet"):
        run(merge=True)
    run(share=Share(1, 2))
    whole = run(merge=True)
    assert whole.lines.keys() == set(plan.cells())
    assert not whole.reasons


def test_what_is_learned_by_gradients_is_carried_as_text_or_emulated(task):
    pytest.importorskip("torch", reason="needs the extra clip")
    methods = ("zero-shot", "coop?epochs=2", "pez?steps=2&tokens=2")
    request = asked(task, methods=methods, shots=(1,), seeds=(1,))
    sheet = ran(request, "transfer-vit-l")
    assert not sheet.measured.reasons
    found = {one.slot.row[1]: one for one in sheet.numbers}
    assert {*found} == {"Zero-shot", "CoOp+EFT", "PEZ"}
    assert all(one.mean is not None for one in found.values())
    (prompt,) = {line["example"] for line in sheet.measured.lines.values() if line.get("example")}
    assert prompt.endswith("ember.")
    # What it was carried from is a cell of its own, and shared.
    assert ran(request, "shot-curves").measured.done == 0
    assert (
        prompt
        in ran(asked(task, methods=methods, shots=(2,), seeds=(1,)), "pez-failure").markdown()
    )


def test_deep_prompts_are_emulated_on_the_target(task, monkeypatch):
    pytest.importorskip("open_clip", reason="needs the extra clip")
    from tests.encoders.openclip.prompted_models import DEEP, make_encoder

    models = {SOURCE: make_encoder(DEEP, task), TARGET: FakeEncoder()}
    monkeypatch.setattr(room, "_opened", lambda name, device: models[name])
    request = asked(task, methods=("promptsrc?epochs=1",), shots=(1,), seeds=(1,))
    sheet = ran(request, "transfer-vit-l")
    assert not sheet.measured.reasons
    (number,) = sheet.numbers
    assert number.slot.row[1] == "PromptSRC+EFT"
    assert number.mean is not None


def test_a_cell_says_all_that_decides_it(task):
    request = asked(task, methods=("tpb?rounds=3",))
    sheet = ran(request, "pez-failure")
    head, *rows = sheet.cells_csv().splitlines()
    assert head.startswith(",".join(KEY))
    line = next(iter(sheet.measured.lines.values()))
    assert line["weights"] == load_encoder(SOURCE).fingerprint
    assert line["code"] == code_of(type(make_method("tpb")))
    assert all(line[name] for name in ("split", "prompts", "on_weights"))
    assert len(rows) == len(sheet.measured.lines)


def test_the_accuracy_is_that_of_a_comparison(task):
    sheet = ran(asked(task, methods=("tpb?rounds=3",)), "pez-failure")
    words = FitConfig(prompts=str(task / "pools" / "colors.jsonl"), views=2)
    source = str(task / "data" / "colors")
    found = compare(
        CompareRequest(
            *(source, task / "compared", ("tpb?rounds=3",), (2,), (1, 2), SOURCE, (TARGET,)),
            words=words,
        )
    )
    there = {(line["seed"], line["on"]): line["accuracy"] for line in found.lines}
    ours = {(key[3], key[4]): line["accuracy"] for key, line in sheet.measured.lines.items()}
    assert ours == there


def test_the_last_round_is_the_whole(task):
    sheet = ran(asked(task, methods=("tpb?rounds=3",)), "view-rounds")
    for line in sheet.measured.lines.values():
        assert len(line["by_round"]) == 3
        assert tuple(line["by_round"][-1]) == (line["learn_accuracy"], line["accuracy"])


def test_a_changed_image_reruns_its_cells_alone(task):
    write_task(task, "others", seed=1)
    request = asked(task, datasets=("colors", "others"), methods=("zero-shot", "tpb?rounds=2"))
    first = ran(request, "pez-failure").measured
    assert first.done == len(first.lines)
    file = next((task / "data" / "others" / "sea").iterdir())
    Image.new("RGB", (20, 16), "white").save(file)
    second = ran(request, "pez-failure").measured
    assert second.done == sum(key[0] == "others" for key in second.lines)
    # Claims are judged by these, not by what the other image left behind.
    log = ResultLog(request.out / CELLS)
    seen = Evidence(log.results(log)).of("tpb")
    assert {line["split"] for line in seen} == {
        line["split"] for line in second.lines.values() if line["shots"]
    }
    assert ran(request, "pez-failure").measured.done == 0


def test_a_changed_pool_or_more_views_rerun(task):
    request = asked(task, methods=("zero-shot", "tpb?rounds=2"))
    ran(request, "pez-failure")
    text = (task / "pools" / "colors.jsonl").read_text(encoding="utf-8")
    assert "fresh green" in text
    (task / "pools" / "colors.jsonl").write_text(
        text.replace("fresh green", "lush green"), encoding="utf-8"
    )
    changed = ran(request, "pez-failure").measured
    assert changed.done == len(changed.lines)


def test_changed_code_reruns_its_method_alone(task, monkeypatch):
    request = asked(task, methods=("zero-shot", "tpb?rounds=2"))
    ran(request, "pez-failure")
    own = code_of

    def other(method):
        return "another" if method is type(make_method("tpb")) else own(method)

    monkeypatch.setattr(room, "code_of", other)
    changed = ran(request, "pez-failure").measured
    assert changed.done == sum("tpb" in key[1] for key in changed.lines)


def test_it_goes_on_where_it_was_stopped(task, monkeypatch):
    request = asked(task, methods=("zero-shot", "tpb?rounds=2"))
    whole = ran(request, "pez-failure").measured.lines
    (request.out / CELLS).unlink()
    for file in sorted((request.out / "cells").iterdir())[3:]:
        file.unlink()
    again = ran(request, "pez-failure").measured
    assert again.done == len(whole) - 3
    assert {key: line["accuracy"] for key, line in again.lines.items()} == {
        key: line["accuracy"] for key, line in whole.items()
    }


def test_a_lost_classifier_is_learned_again(task):
    request = asked(task, methods=("tpb?rounds=2",), transfers=())
    ran(request, "weak-classifiers")
    shutil.rmtree(request.out / "fitted")
    sheet = ran(asked(task, methods=("tpb?rounds=2",)), "pez-failure")
    assert not sheet.measured.reasons
    assert all(number.mean is not None for number in sheet.numbers)


def test_what_is_missing_is_said_and_the_rest_runs(task):
    request = asked(
        task,
        datasets=("colors", "gone"),
        methods=("zero-shot", "llmbo", "tpb?rounds=2"),
        transfers=("conse:nowhere",),
    )
    sheet = ran(request, "main")
    reasons = " ".join(sheet.measured.reason_lines())
    assert f"there is no data set gone in {task / 'data'}" in reasons
    assert "llmbo needs the name of a language model" in reasons
    there = {key[:2] for key in sheet.measured.lines}
    assert there == {("colors", "zero-shot"), ("colors", "tpb?rounds=2")}
    partial = [one for one in sheet.numbers if one.slot.column == "Avg." and one.mean is not None]
    assert partial
    assert all(one.cells < one.of and "gone" in one.why_not for one in partial)
    assert "Not there:" in sheet.markdown()
    carried = ran(request, "pez-failure").measured
    assert any("nowhere" in reason for reason in carried.reasons.values())
    assert any(key[4] == SOURCE for key in carried.lines)


def test_data_and_sentences_are_found_by_any_name_of_theirs(tmp_path):
    (tmp_path / "Oxford-IIIT-Pet.json").write_text("{}")
    assert find_sentences("oxford_pets", tmp_path).endswith("Oxford-IIIT-Pet.json")
    assert find_sentences("emoji", None) is None
    assert find_data("emoji", None) == "emoji"
    with pytest.raises(PoolError, match=r"promptboost pool build … -o .*dtd\.jsonl"):
        find_sentences("dtd", tmp_path)
    with pytest.raises(PoolError, match="--pools"):
        find_sentences("dtd", None)
    with pytest.raises(DataError, match="--data"):
        find_data("dtd", None)
    with pytest.raises(DataError, match="promptboost data check dtd"):
        find_data("dtd", tmp_path)


def test_a_sample_of_a_benchmark_is_not_compared(task):
    shutil.copytree(task / "data" / "colors", task / "data" / "oxford_pets")
    shutil.copy(task / "pools" / "colors.jsonl", task / "pools" / "oxford_pets.jsonl")
    request = asked(task, datasets=("oxford_pets",), methods=("zero-shot",))
    sheet = ran(request, "main")
    assert sheet.measured.samples == {"oxford_pets"}
    assert sheet.compared == []


def test_a_folder_of_something_else_is_left_alone(task):
    request = asked(task)
    request.out.mkdir()
    (request.out / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match="choose another folder"):
        PlanRunner(request)
    assert [file.name for file in request.out.iterdir()] == ["thesis.tex"]


def test_two_classes_are_shown_round_by_round(task):
    request = asked(task, methods=("tpb",))
    sheet = ran(request, "consecutive-rounds")
    (line,) = sheet.measured.lines.values()
    scene = line["scene"]
    assert line["classes"] == "+".join(scene["classes"])
    assert len(scene["classes"]) == 2
    assert len(scene["rounds"]) == 3
    assert [image["label"] for image in scene["images"]] == sorted(scene["classes"] * 2)
    drawn = write_sheet(sheet, request)[-1].read_text(encoding="utf-8")
    assert drawn.count("<image") == 4 * 3
    assert json.loads(json.dumps(scene)) == scene


def test_the_methods_of_these_tests_are_all_that_need_no_gradients():
    assert {text.partition("?")[0] for text in METHODS} == {
        *("zero-shot", "dclip", "cupl", "proapo", "tpb")
    }


def test_what_is_missing_is_looked_for_once(task, monkeypatch):
    asked_for = []

    def opened(name, device):
        asked_for.append(name)
        raise EncoderError(f"{name} is not here")

    monkeypatch.setattr(room, "_opened", opened)
    measured = ran(asked(task), "main").measured
    assert asked_for == [SOURCE]
    assert set(measured.reasons.values()) == {f"{SOURCE} is not here"}


def test_a_full_graphics_card_is_a_reason(task, monkeypatch):
    def full(*_args, **_options):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(cell_worker, "transferred", full)
    measured = ran(asked(task, methods=("zero-shot", "tpb?rounds=2")), "pez-failure").measured
    assert set(measured.reasons.values()) == {f"the device has too little memory for {TARGET}"}
    assert {key[4] for key in measured.reasons} == {TARGET}


def test_a_whole_benchmark_stands_beside_the_papers_numbers(tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "dtd", tiny("dtd"))
    write_tree(tmp_path / "data", "dtd")
    sentences = {"banded": ["many stripes"], "dotted": ["many dots"]}
    pool = build_pool(list(sentences), templates=["a {}."], descriptions={"cupl": sentences})
    (tmp_path / "pools").mkdir()
    save_pool(pool, tmp_path / "pools" / "dtd.jsonl")
    # As if it were the paper's encoder, which is not here.
    monkeypatch.setattr(room, "_opened", lambda name, device: FakeEncoder(dim=16))
    request = asked(
        tmp_path,
        datasets=("dtd",),
        shots=(1,),
        methods=("zero-shot", "tpb"),
        encoder="",
        transfers=(),
        views=4,
    )
    needs = find_needs([chosen(find_plan("main"), request.choice)], request)
    assert needs.data[0].prompts == 2 * 2
    assert needs.encoders[0].texts == 2 * 2
    sheet = ran(request, "main")
    assert not sheet.measured.samples
    assert not sheet.measured.reasons
    found = {one.slot.row: one for one in sheet.numbers if one.slot.column == "DTD"}
    assert found["ZS", "ZS-CLIP"].paper.value == 40.0
    boosted = found["1 shot", "TPB"]
    assert boosted.paper.value == 53.1
    assert boosted.difference == pytest.approx(boosted.mean - 53.1)
    assert {one.paper for one in sheet.numbers if one.slot.column == "Avg."} == {None}
    (tmp_path / "data" / "dtd" / "images" / "banded" / "banded_0004.jpg").unlink()
    gone = ran(request, "main").measured
    assert not gone.lines
    assert all("promptboost data check dtd" in reason for reason in gone.reasons.values())

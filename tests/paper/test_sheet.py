"""Tables of the paper against numbers worked out by hand."""

import csv
import io

import pytest

from promptboost.data.benchmarks import BENCHMARKS
from promptboost.paper.plans import PLANS, PaperChoice, chosen, find_plan
from promptboost.paper.published import listed, published
from promptboost.paper.runner import PlanResults
from promptboost.paper.sheet import make_sheet

VIT_L = "ViT-L-14/openai"


def measured(plan, accuracy):
    """Results of all cells of a plan, by a function of the cell."""
    lines = {}
    for cell in plan.cells():
        share = accuracy(*cell[:5])
        lines[cell] = {"accuracy": share, "method": cell[1], "by_round": [(share, share)] * 50}
    return PlanResults(lines)


def by_place(sheet):
    return {(*one.slot.row, one.slot.column): one for one in sheet.numbers}


def test_a_table_by_hand():
    plan = find_plan("large-to-small")
    # Ten data sets at 80, 82 and 84 in three draws: mean 82, deviation 2. ImageNet at 60: deviation 0.
    draws = {1: 0.80, 2: 0.82, 3: 0.84}

    def accuracy(dataset, method, shots, seed, on):
        if not shots:
            return 0.71
        return 0.60 if dataset == "imagenet" else draws[seed]

    found = by_place(make_sheet(plan, measured(plan, accuracy)))
    ours = found["ViT-L/14 (source)", "TPB"]
    assert ours.mean == pytest.approx((10 * 82 + 60) / 11)  # 80.00
    assert ours.deviation == pytest.approx(20 / 11)  # 1.82
    assert (ours.cells, ours.of) == (33, 33)
    assert ours.paper.value == 81.24
    assert ours.difference == pytest.approx(-1.24)
    assert ours.tolerance == 1.0
    assert ours.within is False
    assert str(ours) == "80.00 ± 1.82 (81.24, −1.24 ✗)"
    zero_shot = found["ViT-L/14 (source)", "ZS-CLIP"]
    assert str(zero_shot) == "71.00 (71.07, −0.07 ✓)"
    assert found["EVA-02 B/16 (target)", "TPB"].paper.value == 76.91


def test_a_group_is_the_mean_over_its_encoders():
    plan = find_plan("transfer-vit-l")
    values = dict(zip(listed().groups["ViT-L"], (80.30, 85.46, 82.44, 80.42, 81.75), strict=True))
    sheet = make_sheet(plan, measured(plan, lambda d, m, k, s, on: values[on] / 100))
    one = by_place(sheet)["ViT-L", "TPB", "16"]
    assert one.mean == pytest.approx(82.074)  # as the paper's 82.07, by its own target-wise table
    assert one.of == 5 * 11 * 3
    assert one.within


@pytest.mark.parametrize("name", PLANS)
def test_each_printed_number_has_its_place(name):
    plan = find_plan(name)
    sheet = make_sheet(plan, measured(plan, lambda *_: 0.5))
    found = {
        (
            *(one.slot.dataset, one.slot.method, one.slot.shots or None),
            *(plan.source if one.slot.shots else "", one.slot.target, one.slot.setting),
        )
        for one in sheet.numbers
    }
    printed = {number.key for number in published(name)}
    assert printed <= found
    if printed:
        assert printed == found
        assert len(sheet.compared) == len(sheet.numbers)


@pytest.mark.parametrize("name", PLANS)
def test_no_two_numbers_share_a_place(name):
    plan = find_plan(name)
    places = [(slot.row, slot.column) for slot in plan.slots]
    assert len(set(places)) == len(places)
    assert len({len(slot.row) for slot in plan.slots}) == 1
    assert len(plan.entry.head) == len(plan.slots[0].row)


def test_imagenet_has_its_own_number_of_rounds():
    spelled = {cell[0]: cell[1] for cell in find_plan("main").cells() if cell[1].startswith("tpb")}
    assert spelled.pop("imagenet") == "tpb?rounds=30"
    assert set(spelled.values()) == {"tpb"}


def test_peers_learn_as_long_as_in_the_paper():
    spelled = {cell[:2] for cell in find_plan("main").cells()}
    assert {method for _, method in spelled if method.startswith("pez")} == {"pez?epochs=200"}
    assert {("imagenet", "coop?epochs=50"), ("dtd", "coop")} <= spelled
    asked = chosen(find_plan("main"), PaperChoice(methods=("pez?steps=5", "coop?epochs=2")))
    assert {cell[1] for cell in asked.cells()} == {"pez?steps=5", "coop?epochs=2"}


def test_what_is_not_whole_is_not_compared():
    plan = find_plan("large-to-small")
    whole = measured(plan, lambda *_: 0.8)
    lost = next(cell for cell in whole.lines if cell[0] == "dtd" and cell[2])
    reasons = {lost: "dtd is not there"}
    lines = {cell: line for cell, line in whole.lines.items() if cell != lost}
    one = by_place(make_sheet(plan, PlanResults(lines, reasons)))["ViT-L/14 (source)", "TPB"]
    assert (one.cells, one.of) == (32, 33)
    assert one.within is None
    assert one.why_not == "dtd is not there"
    assert "[32 of 33]" in str(one)


def test_a_number_that_is_not_whole_points_to_its_reasons():
    plan = find_plan("large-to-small")
    whole = measured(plan, lambda *_: 0.8)
    reasons = {}
    for cell in whole.lines:
        if cell[4] == VIT_L and not cell[2]:
            reasons[cell] = "no weights"
        elif cell[0] in ("dtd", "ucf101") and cell[4] == VIT_L:
            reasons[cell] = f"no {cell[0]}"
    lines = {cell: line for cell, line in whole.lines.items() if cell not in reasons}
    sheet = make_sheet(plan, PlanResults(lines, reasons))
    _, (first, second) = sheet.grid()
    assert first == [
        "ViT-L/14 (source)",
        "– (paper 71.07) [a]",
        "80.00 ± 0.00 [27 of 33] [b, c]",
    ]
    assert not any("[" in text for text in second)
    assert sheet.measured.reason_lines() == [
        "[a] 11 of the cells: no weights",
        "[b] 3 of the cells: no dtd",
        "[c] 3 of the cells: no ucf101",
    ]
    assert "\\[b\\] 3 of the cells: no dtd" in sheet.markdown()


def test_there_are_letters_for_many_reasons():
    marks = PlanResults(reasons={("d", "m", 1, i, "e"): f"reason {i}" for i in range(30)}).marks()
    assert [*marks.values()][:2] == ["a", "b"]
    assert [*marks.values()][-5:] == ["z", "aa", "ab", "ac", "ad"]


def test_other_encoders_are_never_compared():
    choice = PaperChoice(encoder="conse:lite0", transfers=("conse:lite2",))
    for plan in PLANS.values():
        other = chosen(plan, choice)
        assert set(other.encoders) <= {"conse:lite0", "conse:lite2"}
        sheet = make_sheet(other, measured(other, lambda *_: 0.5))
        assert sheet.compared == []
        assert other.at_hand.endswith("instead of the paper's encoders.")
        assert f"of the paper. {other.at_hand}\n" in sheet.markdown()
        assert "(paper" not in sheet.markdown()
        assert "ZS-CLIP" not in sheet.markdown()


def test_encoders_at_hand_are_named_where_they_are_used():
    def named(name, **given):
        return chosen(find_plan(name), PaperChoice(**given)).at_hand

    both = {"encoder": "fake:8-0", "transfers": ("fake:8-1",)}
    assert named("pez-failure", **both).startswith("With fake:8-0 → fake:8-1 instead")
    assert named("main", **both).startswith("With fake:8-0 instead")
    assert named("pez-failure", transfers=("fake:8-1",)).startswith("With RN50/openai → fake:8-1")
    assert named("main", transfers=("fake:8-1",)) == ""


def test_narrowed_the_rest_is_still_the_papers():
    plan = chosen(find_plan("main"), PaperChoice(datasets=("dtd", "eurosat"), shots=(16,)))
    sheet = make_sheet(plan, measured(plan, lambda *_: 0.628))
    one = by_place(sheet)["16 shot", "TPB", "DTD"]
    assert (one.paper.value, one.within) == (62.8, True)
    assert by_place(sheet)["16 shot", "TPB", "Avg."].paper is None  # of two data sets, not eleven
    assert {one.slot.shots for one in sheet.numbers} == {0, 16}


def test_shots_that_a_plan_has_not_stand_for_its_own():
    plan = chosen(find_plan("main"), PaperChoice(shots=(1, 4), methods=("tpb",)))
    assert {slot.row[0]: slot.shots for slot in plan.slots} == {"1 shot": 1, "4 shot": 4}
    assert not any(slot.changed for slot in plan.slots if slot.shots == 1)
    single = chosen(find_plan("duplication"), PaperChoice(shots=(1, 4)))
    assert {slot.shots for slot in single.slots} == {0, 4}
    columns = chosen(find_plan("transfer-vit-l"), PaperChoice(shots=(1, 4)))
    assert {slot.column for slot in columns.slots} == {"1", "4"}


@pytest.mark.parametrize("shots", [(2,), (4,), (3, 32)])
def test_other_shots_leave_the_rounds_where_they_are(shots):
    plan = chosen(find_plan("view-rounds"), PaperChoice(shots=shots))
    assert len(plan.slots) == len(find_plan("view-rounds").slots)
    assert all(slot.column == str(slot.rounds) for slot in plan.slots)
    assert {slot.shots for slot in plan.slots} == {shots[0]}


def test_the_files_hold_every_number():
    plan = find_plan("pez-failure")
    sheet = make_sheet(plan, measured(plan, lambda *_: 0.5598))
    rows = list(csv.DictReader(io.StringIO(sheet.csv())))
    assert len(rows) == 6
    first = rows[0]
    assert (first["backbone"], first["column"]) == ("RN50 (source)", "ZS-CLIP")
    assert (first["ours"], first["paper"], first["within"]) == ("55.98", "55.98", "true")
    text = sheet.markdown()
    assert "| RN50 (source) | 55.98 (55.98, +0.00 ✓) |" in text
    assert "tolerance" in text


def test_a_figure_draws_ours_and_the_papers():
    plan = find_plan("shot-curves")
    drawn = make_sheet(plan, measured(plan, lambda *_: 0.7)).figure()
    assert drawn.startswith("<svg")
    assert "TPB, the paper" in drawn
    at_hand = chosen(plan, PaperChoice(encoder="fake:8-0", transfers=("fake:8-1",)))
    assert ", the paper" not in make_sheet(at_hand, measured(at_hand, lambda *_: 0.7)).figure()


def test_a_figure_says_where_it_is_from_and_what_is_not_whole():
    plan = chosen(find_plan("view-factor"), PaperChoice(datasets=("dtd", "eurosat"), encoder="a:b"))
    whole = measured(plan, lambda *_: 0.7).lines
    lost = {cell for cell in whole if cell[0] == "dtd" and "views_per_round=1" in cell[1]}
    lines = {cell: line for cell, line in whole.items() if cell not in lost}
    drawn = make_sheet(plan, PlanResults(lines, dict.fromkeys(lost, "gone"))).figure()
    assert "Mean of dtd, eurosat." in drawn
    assert "With a:b instead of the paper" in drawn
    assert "a=1 [3 of 6]<" in drawn
    assert "a=2<" in drawn
    alone = chosen(find_plan("view-rounds"), PaperChoice())
    assert "On stanford_cars." in make_sheet(alone, measured(alone, lambda *_: 0.7)).figure()


def test_names_of_strangers_are_no_marks():
    plan = chosen(find_plan("main"), PaperChoice(datasets=("a|b<i>",), methods=("zero-shot",)))
    text = make_sheet(plan, measured(plan, lambda *_: 0.5)).markdown()
    assert "<i>" not in text.replace("\\<i\\>", "")
    assert "a|b" not in text.replace("a\\|b", "")


def test_the_eleven_are_the_papers():
    assert len(BENCHMARKS) == 11
    assert list(listed().datasets) == list(BENCHMARKS)
    assert find_plan("large-to-small").source == VIT_L


def test_fewer_crops_than_a_round_should_see_are_told():
    plan = chosen(find_plan("fixed-exposure"), PaperChoice(views=8))
    changed = {slot.column: slot.changed for slot in plan.slots if slot.method == "tpb"}
    assert changed == {
        "M/a 1/8": ("8 crops of an image in a round instead of 200",),
        "M/a 5/8": ("8 crops of an image in a round instead of 40",),
        "M/a 10/8": ("8 crops of an image in a round instead of 20",),
        "M/a 50/4": (),
    }
    assert not any(
        slot.changed for slot in chosen(find_plan("fixed-exposure"), PaperChoice()).slots
    )
    curves = chosen(find_plan("view-factor"), PaperChoice(views=2))
    assert list(dict.fromkeys(slot.row[0] for slot in curves.slots)) == ["a=2", "a=1", "No aug"]
    rounds = chosen(find_plan("view-rounds"), PaperChoice(views=2))
    assert {slot.row[0] for slot in rounds.slots} == {
        *("No augmentation (a=0)", "With augmentation (a=2)")
    }

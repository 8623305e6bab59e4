"""Cells on a real cluster or in shares: the files of one process."""

import csv
import json
import os

import pytest

from promptboost.compare.compare import compare, write_results
from promptboost.distributed.engine import Placement, Share
from promptboost.errors import RunError
from promptboost.paper.plans import chosen, find_plan
from promptboost.paper.runner import PlanRunner
from promptboost.paper.sheet import make_sheet, write_sheet
from tests.cli.cli_tools import call
from tests.compare.test_compare import OTHER
from tests.compare.test_compare import request as comparison
from tests.paper.paper_tools import asked, write_task
from tests.run.run_tools import write_images

TIMES = ("seconds", "fit_s", "predict_ms")


def files_of(folder):
    """Return all files that must not depend on the placement, without times."""
    found = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if file.parent.name == "cells":
            content = {name: part for name, part in json.loads(content).items() if name != "times"}
        elif file.name == "results.csv":
            rows = csv.DictReader(content.decode().splitlines())
            content = [[text for name, text in row.items() if name not in TIMES] for row in rows]
        elif file.name in ("results.md", "cells.csv"):
            continue  # the table of the file before, or of the cells, with times in every line
        found[str(file.relative_to(folder))] = content
    return found


def run(noisy_task, out, placement=None, **changes):
    request = comparison(noisy_task, out, transfers=(OTHER,), **changes)
    found = compare(request, lambda _: None, placement)
    write_results(request, found)
    assert not found.failed
    return noisy_task / out


def test_a_comparison_on_three_nodes_is_the_one_of_one_process(noisy_task, cluster, monkeypatch):
    few = {"methods": ("zero-shot", "logistic", "promptboost"), "shots": (1,)}
    here, there = run(noisy_task, "here", **few), run(noisy_task, "there", Placement("ray"), **few)
    assert files_of(there) == files_of(here)
    before = {file.name: file.stat().st_mtime_ns for file in (there / "cells").iterdir()}
    assert len(before) == 3 * 2 * 2
    # Only what is missing is done.
    gone = sorted(before)[::5]
    for name in gone:
        (there / "cells" / name).unlink()
    (there / "cells.jsonl").unlink()
    assert files_of(run(noisy_task, "there", Placement("ray", workers=1), **few)) == files_of(here)
    after = {file.name: file.stat().st_mtime_ns for file in (there / "cells").iterdir()}
    assert {name for name in before if after[name] != before[name]} == set(gone)
    # Nothing is missing: not even a cluster is asked for.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    run(noisy_task, "there", Placement("ray"), **few)


def test_parts_put_together_are_the_whole(noisy_task):
    few = {"methods": ("zero-shot", "logistic"), "shots": (1,), "seeds": (1, 2, 3)}
    here = run(noisy_task, "here", **few)
    request = comparison(noisy_task, "there", transfers=(OTHER,), **few)
    for part in (2, 0):
        compare(request, placement=Placement(share=Share(part, 3)))
    with pytest.raises(RunError, match=r"4 of 12 cells are not in .* without --merge"):
        compare(request, placement=Placement(merge=True))
    compare(request, placement=Placement(share=Share(1, 3)))
    assert not (noisy_task / "there" / "cells.jsonl").exists()
    assert files_of(run(noisy_task, "there", Placement(merge=True), **few)) == files_of(here)


def test_the_command_line(noisy_task, capsys, monkeypatch):
    monkeypatch.chdir(noisy_task)
    command = ("compare", "images", "-o", "out", "--encoder", "fake:32-0", "--shots", "1")
    command += ("--methods", "zero-shot,logistic", "--seeds", "1")
    part = call(capsys, *command, "--shard", "1/2")
    assert part.code == 0
    assert "part 1/2 is done: 1 cells in out" in part.out
    assert "--merge" in part.out
    early = call(capsys, *command, "--merge")
    assert early.code == 2
    assert "1 of 2 cells are not in out yet" in early.err
    assert call(capsys, *command, "--shard", "0/2", "--json").code == 0
    assert "accuracy in percent" in call(capsys, *command, "--merge").out
    for options, says in (
        (("--on", "mars"), "give local, ray, or ray://HOST:PORT"),
        (("--shard", "2/2"), "as in 0/8"),
        (("--workers", "2"), "--workers and --cores are for --on ray"),
        (("--on", "ray", "--merge"), "leave --on out"),
    ):
        answer = call(capsys, *command, *options)
        assert answer.code == 2
        assert says in answer.err


def test_tables_of_the_paper_on_three_nodes_and_in_parts(noisy_task, cluster):
    write_task(noisy_task)
    choice = {"shots": (1,), "seeds": (1,), "methods": ("zero-shot", "tpb?rounds=2")}
    made = {}
    for name, places in {
        "here": [Placement()],
        "there": [Placement("ray")],
        "parts": [*(Placement(share=Share(i, 2)) for i in range(2)), Placement(merge=True)],
    }.items():
        request = asked(noisy_task, **choice)
        object.__setattr__(request, "out", noisy_task / name)
        for placement in places:
            runner = PlanRunner(request, placement=placement)
            plan = chosen(find_plan("pez-failure"), request.choice)
            sheet = make_sheet(plan, runner.run(plan))
            if placement.share is None:
                write_sheet(sheet, request)
                assert not sheet.measured.reasons
            runner.close()
        made[name] = files_of(noisy_task / name)
    assert made["there"] == made["here"]
    assert made["parts"] == made["here"]
    assert any(name.endswith("table.md") for name in made["here"])


def test_a_merge_of_the_paper_wants_all_cells(noisy_task):
    write_task(noisy_task)
    request = asked(noisy_task, shots=(1,), seeds=(1,), methods=("zero-shot",))
    plan = chosen(find_plan("main"), request.choice)
    with pytest.raises(RunError, match="without --merge runs them"):
        PlanRunner(request, placement=Placement(merge=True)).run(plan)


def test_other_images_on_a_node_are_not_measured(noisy_task):
    """A worker that sees other files than the driver fails, and writes no result."""
    request = comparison(noisy_task, "out", methods=("zero-shot",), shots=(1,), seeds=(1,))
    (noisy_task / "elsewhere").mkdir()
    write_images(noisy_task / "elsewhere" / "images", noise=60, seed=3)
    from promptboost.compare.cell_worker import inputs_of, open_worker
    from promptboost.compare.comparison import Comparison

    inputs = inputs_of(request, Comparison(request))
    settings = request.settings() | {"source": str(noisy_task / "elsewhere" / "images")}
    with pytest.raises(RunError, match=r"images on .* are other than where the command was typed"):
        open_worker(settings, inputs)
    assert os.listdir(noisy_task / "elsewhere") == ["images"]

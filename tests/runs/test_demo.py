import pytest

from promptboost.cli.demo import _summary
from promptboost.config import FitConfig
from promptboost.errors import RunError
from promptboost.report import write_card, write_report
from promptboost.runs.demo import COLUMNS, run_demo
from promptboost.runs.run_folder import RunFolder

QUICK = FitConfig(rounds=2, views=2, views_per_round=1)
FAKES = ("fake:32-0", "fake:16-1")


def quick_demo(task, folder, **options):
    return run_demo(
        folder,
        data=str(task / "images"),
        shots=(1, 2),
        seeds=(1, 2),
        encoders=FAKES,
        settings=QUICK,
        progress=False,
        finish=(write_report, write_card),
        **options,
    )


def test_one_row_for_each_number_of_shots_and_a_run_to_look_at(task):
    found = quick_demo(task, task / "demo")
    assert [row["shots"] for row in found["rows"]] == [1, 2]
    assert all(set(row) == {"shots", *COLUMNS} for row in found["rows"])
    assert all(0 <= row[name] <= 1 for row in found["rows"] for name in COLUMNS)
    assert RunFolder(task / "demo").state == "finished"
    assert (task / "demo/report.html").exists()
    assert quick_demo(task, task / "demo") == found


def test_the_summary_says_what_to_type_and_what_was_moved(task):
    text = _summary(quick_demo(task, task / "demo"))
    assert "moved to fake:16-1: another image net and another sentence encoder" in text
    assert f"read it  promptboost show {task / 'demo'}" in text


def test_somebody_elses_folder_is_refused_before_the_work(task):
    said = []
    with pytest.raises(RunError, match="nothing in it is touched"):
        quick_demo(task, task, say=said.append)
    assert said == []

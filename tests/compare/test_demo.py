import numpy as np
import pytest

from promptboost.cli.demo import _summary
from promptboost.compare import demo
from promptboost.compare.demo import COLUMNS, run_demo
from promptboost.config import FitConfig
from promptboost.errors import RunError
from promptboost.report import write_card, write_report
from promptboost.run.fit import fit_run
from promptboost.run.run_folder import RunFolder

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


def test_on_both_encoders_only_few_shots_are_learned(task, monkeypatch):
    monkeypatch.setattr(demo, "MOST_ON_BOTH", 1)
    one, two = quick_demo(task, task / "demo")["rows"]
    both = ["both_text", "both_boosted", "target_both"]
    assert None not in one.values()
    assert [name for name, value in two.items() if value is None] == both
    text = _summary({**quick_demo(task, task / "demo")})
    learned_on_both = [
        line for line in text.splitlines() if "learned on both" in line and "%" in line
    ]
    assert len(learned_on_both) == 3
    assert all(line.endswith("–") for line in learned_on_both)


def test_what_is_learned_on_both_is_what_a_fit_on_both_learns(task):
    row = quick_demo(task, task / "demo")["rows"][1]
    accuracies = []
    for seed in (1, 2):
        settings = QUICK.merged({"encoder": FAKES, "shots": 2, "seed": seed})
        fitted = fit_run(str(task / "images"), task / f"run-{seed}", settings)
        accuracies.append(fitted.method("promptboost").accuracy)
    assert row["both_boosted"] == pytest.approx(np.mean(accuracies))


def test_the_summary_says_what_to_type_and_what_was_moved(task):
    text = _summary(quick_demo(task, task / "demo"))
    assert "fake:16-1 has another image net and another sentence encoder" in text
    assert "text, learned on fake:32-0 and moved here" in text
    assert all(len(line) <= 100 for line in text.splitlines() if str(task) not in line)
    assert f"read it  promptboost show {task / 'demo'}" in text


def test_somebody_elses_folder_is_refused_before_the_work(task):
    said = []
    with pytest.raises(RunError, match="nothing in it is touched"):
        quick_demo(task, task, say=said.append)
    assert said == []

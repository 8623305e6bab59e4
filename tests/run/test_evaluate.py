import shutil

import pytest

from promptboost.errors import DataError
from promptboost.run.evaluate import evaluate_run
from tests.run.run_tools import write_images


def figures(found):
    return {method["name"]: method["accuracy"] for method in found["methods"]}


def test_other_images(fitted):
    write_images(fitted / "new", count=3, seed=9)
    found = evaluate_run(fitted / "run", str(fitted / "new"))
    assert found["images"] == 12
    assert set(figures(found)) == {"zero-shot", "promptboost"}
    assert [row["count"] for row in found["per_class"]] == [3, 3, 3, 3]
    wrong = sum(row["count"] for row in found["confusions"])
    assert figures(found)["promptboost"] == pytest.approx(1 - wrong / 12)


def test_some_classes_are_enough_and_images_learned_from_are_counted(fitted):
    shutil.rmtree(fitted / "images/sea")
    found = evaluate_run(fitted / "run", str(fitted / "images"))
    assert found["images"] == 24
    assert found["learned_from"] == 12
    assert {row["class"]: row["count"] for row in found["per_class"]}["sea"] == 0


def test_images_learned_from_are_known_by_content_or_not_at_all(fitted):
    (fitted / "images").rename(fitted / "moved")
    for file in (fitted / "moved").rglob("*.png"):
        file.rename(file.with_name(f"renamed-{file.name}"))
    write_images(fitted / "new", seed=9)  # other images by the same names
    assert evaluate_run(fitted / "run", str(fitted / "moved"))["learned_from"] == 16
    assert evaluate_run(fitted / "run", str(fitted / "new"))["learned_from"] == 0
    (fitted / "run/metrics.json").unlink()
    assert evaluate_run(fitted / "run", str(fitted / "new"))["learned_from"] is None


def test_a_split_called_test_is_what_is_measured(fitted):
    write_images(fitted / "new/train", count=2)
    write_images(fitted / "new/test", count=1)
    found = evaluate_run(fitted / "run", str(fitted / "new"))
    assert found["images"] == 4


def test_unknown_classes_are_refused(fitted):
    (fitted / "images/sea").rename(fitted / "images/lake")
    with pytest.raises(DataError, match="has no class 'lake'; it has ember, leaf"):
        evaluate_run(fitted / "run", str(fitted / "images"))

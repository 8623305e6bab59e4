"""ProAPO's fitness against the formula written plainly."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from promptboost.errors import LabelError
from promptboost.methods.proapo import evolution
from promptboost.methods.proapo.evolution import Fitness

SCALE = 20.0


def task(seed: int = 0, n: int = 24, classes: int = 8) -> tuple[Fitness, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((n, 6)).astype(np.float32)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    labels = rng.integers(classes, size=n)
    rows = rng.standard_normal((5, classes, 6)).astype(np.float32)
    return Fitness(images, labels, SCALE, top1_weight=0.3, top5_weight=0.2), rows


def plainly(
    images: NDArray[np.float32], labels: NDArray[np.int64], rows: NDArray[np.float32]
) -> float:
    top1 = top5 = loss = 0.0
    for image, label in zip(images.astype(float), labels, strict=True):
        scores = [SCALE * float(image @ row) / math.sqrt(float(row @ row)) for row in rows]
        order = sorted(range(len(scores)), key=lambda k: (-scores[k], k))
        top1 += 100 * (order[0] == label) / len(labels)
        top5 += 100 * (label in order[:5]) / len(labels)
        total = sum(math.exp(score) for score in scores)
        loss -= math.log(math.exp(scores[label]) / total) / len(labels)
    return 0.3 * top1 + 0.2 * top5 - 10 * loss


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_formula(seed: int) -> None:
    fitness, rows = task(seed)
    expected = [plainly(fitness.images, fitness.labels, each) for each in rows]
    np.testing.assert_allclose(fitness.of(rows).fitness, expected, rtol=1e-5, atol=1e-4)


def test_changing_a_few_classes_is_measuring_the_whole() -> None:
    fitness, rows = task()
    classes = np.array([6, 2])
    whole = np.repeat(rows[:1], 4, axis=0)
    whole[:, classes] = rows[1:, :2]
    changed = fitness.of_changed(rows[0], classes, rows[1:, :2])
    np.testing.assert_allclose(changed.fitness, fitness.of(whole).fitness, rtol=1e-5)
    np.testing.assert_array_equal(changed.top1, fitness.of(whole).top1)


def test_measuring_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fitness, rows = task()
    together = fitness.of(rows).fitness
    monkeypatch.setattr(evolution, "_SCORES_AT_ONCE", 1)
    np.testing.assert_allclose(fitness.of(rows).fitness, together, rtol=1e-6)


def test_of_equal_scores_the_first_class_wins_as_in_predicting() -> None:
    same = np.ones((3, 2), dtype=np.float32)
    images = same / np.sqrt(np.float32(2))
    fitness = Fitness(images, np.array([0, 1, 2]), 1.0, top1_weight=1, top5_weight=0)
    assert fitness.of(same).top1 == pytest.approx([100 / 3])


def test_no_images_is_an_error() -> None:
    with pytest.raises(LabelError, match="no images"):
        Fitness(
            np.zeros((0, 2), np.float32), np.zeros(0, np.int64), 1, top1_weight=1, top5_weight=1
        )

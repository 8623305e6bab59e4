import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra clip")

from promptboost.encoders.fake import FakeEncoder  # noqa: E402
from promptboost.methods.learned_tokens import TrainingRows  # noqa: E402
from tests.methods.gradient_tools import colored  # noqa: E402


@pytest.fixture
def data():
    encoder = FakeEncoder(dim=8)
    return TrainingRows.of(colored(encoder, views=3), encoder, torch.device("cpu"))


def drawn(data, size, epochs):
    """Which image and view each row of some epochs is."""
    rng = np.random.default_rng(0)
    flat = data.views.flatten(0, 1)
    for _ in range(epochs):
        yield [
            [divmod(int((flat == row).all(dim=1).nonzero()[0]), 3) for row in rows]
            for rows, _ in data.batches(size, rng)
        ]


def test_an_epoch_sees_each_image_once_as_any_of_its_views(data):
    seen = set()
    for batches in drawn(data, 9, 40):
        (batch,) = batches
        assert sorted(image for image, _ in batch) == list(range(9))
        seen.update(batch)
    assert len(seen) == 27


@pytest.mark.parametrize(
    ("size", "lengths"), [(4, [4, 4]), (3, [3, 3, 3]), (9, [9]), (50, [9]), (8, [8]), (1, [1] * 9)]
)
def test_an_incomplete_batch_is_left_out_unless_it_is_the_only_one(data, size, lengths):
    (batches,) = drawn(data, size, 1)
    assert [len(batch) for batch in batches] == lengths


def test_labels_stay_with_their_images(data):
    rng = np.random.default_rng(0)
    for rows, labels in data.batches(4, rng):
        for row, label in zip(rows, labels, strict=True):
            image = int((data.views == row).all(dim=2).any(dim=1).nonzero()[0])
            assert int(label) == image // 3


def test_the_whole_loss_is_the_mean_over_images_and_views(data):
    class_rows = torch.nn.functional.normalize(torch.randn(3, 8), dim=1)
    losses = [
        float(data.loss(class_rows, view[None], label[None]))
        for views, label in zip(data.views, data.labels, strict=True)
        for view in views
    ]
    assert data.whole_loss(class_rows) == pytest.approx(np.mean(losses), rel=1e-5)

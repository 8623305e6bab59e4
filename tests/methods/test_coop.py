import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra clip")

from promptboost.encoders import load_encoder  # noqa: E402
from promptboost.encoders.base import open_tower  # noqa: E402
from promptboost.encoders.fake import FakeEncoder  # noqa: E402
from promptboost.errors import EncoderError, LabelError, SettingError  # noqa: E402
from promptboost.methods import FewShotSet, make_method  # noqa: E402
from promptboost.methods.archive import load_fitted, save_fitted  # noqa: E402
from promptboost.methods.base import RowImages  # noqa: E402
from promptboost.methods.learned_tokens import (  # noqa: E402
    CoOp,
    PromptedClasses,
    TrainingRows,
)
from promptboost.methods.sentence_means import ZeroShot  # noqa: E402
from promptboost.pool import build_pool  # noqa: E402
from tests.methods.gradient_tools import NAMES, NoTower, accuracy, colored, emoji, real  # noqa: E402

POOL = build_pool(list(NAMES))


def plain_loss(encoder, shots, context):
    """The loss as the fake encoder's formula says it, in double precision."""
    fixed = [
        encoder.word_vector("<start>") + sum(map(encoder.word_vector, encoder.words(name)))
        for name in shots.class_names
    ]
    rows = np.stack(fixed) + context.sum(axis=0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    logits = encoder.logit_scale * shots.images.rows(encoder).astype(np.float64) @ rows.T
    log_sums = np.log(np.exp(logits).sum(axis=1))
    return float(np.mean(log_sums - logits[np.arange(len(logits)), shots.labels]))


def plain_slope(encoder, shots, context, step=1e-6):
    slope = np.zeros_like(context)
    for place in np.ndindex(context.shape):
        moved = np.zeros_like(context)
        moved[place] = step
        ahead = plain_loss(encoder, shots, context + moved)
        slope[place] = (ahead - plain_loss(encoder, shots, context - moved)) / (2 * step)
    return slope


def test_steps_are_those_of_the_plain_rule():
    encoder = FakeEncoder(dim=6)
    shots = colored(encoder)
    fitted = CoOp(context_tokens=2, epochs=5, learning_rate=2.0, seed=3).fit(shots, POOL, encoder)
    draw = torch.Generator().manual_seed(3)
    context = 0.02 * torch.randn(2, 6, generator=draw).numpy().astype(np.float64)
    momentum = np.zeros_like(context)
    losses = []
    # All nine images fit into a batch: an epoch is a step, whatever the order.
    for epoch in range(5):
        rate = 1e-5 if epoch == 0 else 2.0 * (1 + np.cos(np.pi * (epoch - 1) / 5)) / 2
        losses.append(plain_loss(encoder, shots, context))
        slope = plain_slope(encoder, shots, context) + 5e-4 * context
        momentum = 0.9 * momentum + slope
        context = context - rate * momentum
    # Large steps: what weight decay does is a hundred times the tolerance.
    np.testing.assert_allclose(fitted.context, context, atol=1e-5)
    np.testing.assert_allclose(fitted.details["loss_by_epoch"], losses, atol=1e-4)


def test_the_gradient_through_a_tiny_tower_is_that_of_finite_differences(tmp_path):
    pytest.importorskip("open_clip", reason="needs the extra clip")
    from tests.encoders.openclip.tiny_models import TINY, save_tiny_models

    encoder = load_encoder(f"{TINY}@{save_tiny_models(tmp_path)[TINY]}", device="cpu")
    classes = PromptedClasses.of(open_tower(encoder), NAMES, 16)
    shots = colored(encoder)
    data = TrainingRows.of(shots, encoder, torch.device("cpu"))
    torch.manual_seed(0)
    context = (0.2 * torch.randn(16, 64)).requires_grad_()

    def loss(vectors):
        return data.loss(classes.rows(vectors), data.views[:, 0], data.labels)

    (slope,) = torch.autograd.grad(loss(context), context)
    for place in [(0, 3), (7, 20), (15, 63)]:
        # Along the gradient of one vector, and along one number of it.
        one_vector, one_number = torch.zeros(2, 16, 64)
        one_vector[place[0]] = slope[place[0]] / slope[place[0]].norm()
        one_number[place] = 1.0
        for direction in (one_vector, one_number):
            with torch.no_grad():
                ahead, behind = loss(context + 0.01 * direction), loss(context - 0.01 * direction)
            expected = float((slope * direction).sum())
            assert float(ahead - behind) / 0.02 == pytest.approx(expected, rel=0.02, abs=2e-4)
        assert slope[place[0]].norm() > 0.01


def test_the_rows_are_the_class_prompts_on_the_encoders_scale():
    encoder = FakeEncoder(dim=8)
    fitted = CoOp(context_tokens=3, epochs=4).fit(colored(encoder), POOL, encoder)
    added = fitted.context.astype(np.float64).sum(axis=0)
    for name, row in zip(NAMES, fitted.rows, strict=True):
        words = [encoder.word_vector(word) for word in ("<start>", *encoder.words(name))]
        expected = np.sum(words, axis=0) + added
        expected *= encoder.logit_scale / np.linalg.norm(expected)
        np.testing.assert_allclose(row, expected, atol=1e-4)
    assert not fitted.intercepts.any()


def test_on_real_weights_the_loss_falls_and_training_images_are_known_better():
    encoder = real("conse:lite0")
    shots = emoji(encoder, ["bird", "fish", "flower", "building", "tool", "dessert"], 3)
    pool = build_pool(list(shots.class_names))
    fitted = CoOp(epochs=25, context_tokens=8, learning_rate=0.01).fit(shots, pool, encoder)
    losses = fitted.details["loss_by_epoch"]
    assert losses[-1] < 0.8 * losses[0]
    assert accuracy(fitted, shots) > accuracy(ZeroShot().fit(shots, pool, encoder), shots)


def test_a_seed_is_a_result():
    encoder = FakeEncoder()
    shots = colored(encoder, views=3)

    def context(seed):
        return CoOp(epochs=3, batch=4, seed=seed).fit(shots, POOL, encoder).context

    np.testing.assert_array_equal(context(1), context(1))
    assert np.abs(context(1) - context(2)).max() > 1e-3


@pytest.mark.parametrize(("a_class", "epochs"), [(1, 50), (2, 100), (4, 100), (8, 200), (16, 200)])
def test_epochs_are_the_authors_unless_said(a_class, epochs):
    encoder = FakeEncoder(dim=4)
    rows = np.repeat(encoder.encode_texts(["red", "green"]), a_class, axis=0)[:, None]
    labels = np.repeat([0, 1], a_class)
    shots = FewShotSet(RowImages({encoder.id: rows}), labels, ("red", "green"))
    fitted = CoOp(context_tokens=1).fit(shots, build_pool(["red", "green"]), encoder)
    assert len(fitted.details["loss_by_epoch"]) == epochs


def test_a_class_with_a_image_too_few_does_not_shorten_the_training():
    encoder = FakeEncoder(dim=4)
    rows = encoder.encode_texts(["red", "red", "green"])[:, None]
    shots = FewShotSet(RowImages({encoder.id: rows}), np.array([0, 0, 1]), ("red", "green"))
    fitted = CoOp(context_tokens=1).fit(shots, build_pool(["red", "green"]), encoder)
    assert len(fitted.details["loss_by_epoch"]) == 100  # two shots were asked for


def test_classes_of_the_same_name_get_the_same_row():
    encoder = FakeEncoder(dim=8)
    rows = encoder.encode_texts(["red", "green", "red"])[:, None]
    shots = FewShotSet(RowImages({encoder.id: rows}), np.arange(3), ("red", "green", "red"))
    fitted = CoOp(epochs=2).fit(shots, build_pool(["red", "green"]), encoder)
    np.testing.assert_array_equal(fitted.rows[0], fitted.rows[2])


def test_it_is_saved_and_read_back(tmp_path):
    encoder = FakeEncoder()
    shots = colored(encoder)
    fitted = make_method("coop?epochs=2&context_tokens=4").fit(shots, POOL, encoder)
    save_fitted(fitted, tmp_path)
    again = load_fitted(tmp_path, encoder)
    np.testing.assert_array_equal(again.logits(shots.images), fitted.logits(shots.images))
    np.testing.assert_array_equal(again.context, fitted.context)
    assert again.details == fitted.details
    assert again.origin.method == "coop?context_tokens=4&epochs=2"


def test_it_does_not_carry_over_by_itself():
    encoder = FakeEncoder()
    fitted = CoOp(epochs=1).fit(colored(encoder), POOL, encoder)
    with pytest.raises(EncoderError):
        fitted.transfer(FakeEncoder(seed=1))


def test_too_high_a_rate_is_said():
    encoder = FakeEncoder()
    method = CoOp(epochs=5, learning_rate=1e38)
    with pytest.raises(SettingError, match=r"no longer a number in epoch \d of 5.*learning_rate="):
        method.fit(colored(encoder), POOL, encoder)


def test_what_cannot_be_done_is_refused_before_any_work():
    encoder = FakeEncoder()
    shots = colored(encoder)
    with pytest.raises(EncoderError, match="mine"):
        CoOp().check(shots, POOL, NoTower())
    with pytest.raises(
        SettingError, match=r"'dark blue\.' are more than the 77 tokens.* at most 74"
    ):
        CoOp(context_tokens=75).check(shots, POOL, encoder)
    CoOp(context_tokens=74).check(shots, POOL, encoder)


@pytest.mark.parametrize(
    "settings",
    [
        {"context_tokens": 0},
        {"epochs": 0},
        {"batch": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        CoOp(**settings)


def test_no_images_are_refused():
    encoder = FakeEncoder(dim=4)
    nothing = RowImages({encoder.id: np.zeros((0, 1, 4), dtype=np.float32)})
    with pytest.raises(LabelError, match="no images"):
        CoOp().fit(FewShotSet(nothing, np.zeros(0, dtype=np.int64), NAMES), POOL, encoder)

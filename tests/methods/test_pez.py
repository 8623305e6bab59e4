import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra clip")

from promptboost.encoders.base import open_tower  # noqa: E402
from promptboost.encoders.fake import FakeEncoder  # noqa: E402
from promptboost.errors import EncoderError, SettingError  # noqa: E402
from promptboost.methods.learned_tokens import PEZ, HardTokens  # noqa: E402
from promptboost.pool import build_pool  # noqa: E402
from tests.methods.gradient_tools import NAMES, NoTower, colored, emoji, real  # noqa: E402

POOL = build_pool(list(NAMES))


class FourWords:
    """A tower of which the step needs only the vocabulary: a special token and three words."""

    vocabulary = torch.tensor([[9.0, 9.0], [2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
    allowed = torch.tensor([1, 2, 3])


def test_a_step_is_the_worked_one():
    hard = HardTokens(FourWords(), 1, learning_rate=0.5, weight_decay=0.1, seed=0)
    with torch.no_grad():
        hard.vectors[:] = torch.tensor([[1.0, 0.8]])
    projected = hard.project()
    # cosines: 1.0/1.28 with (2, 0), 0.8/1.28 with (0, 1); the special token would be nearest.
    assert hard.tokens == [1]
    assert projected.tolist() == [[2.0, 0.0]]
    # The gradient of 3x² - 2y is (6x, -2): at the token (12, -2), at the vector it would be (6, -2).
    hard.step(3 * projected[0, 0] ** 2 - 2 * projected[0, 1], projected)
    # AdamW: shrink by 1 - 0.5 * 0.1, then the first step is the rate towards minus the sign.
    np.testing.assert_allclose(hard.vectors.detach(), [[0.95 - 0.5, 0.76 + 0.5]], atol=1e-6)
    projected = hard.project()
    assert hard.tokens == [2]
    hard.step(3 * projected[0, 0] ** 2 - 2 * projected[0, 1], projected)
    # Gradients so far (12, -2) and, at the token (0, 1), (0, -2).
    mean = np.array([0.9 * 0.1 * 12, 0.9 * 0.1 * -2 + 0.1 * -2]) / (1 - 0.9**2)
    square = np.array([0.999 * 0.001 * 144, 0.999 * 0.001 * 4 + 0.001 * 4]) / (1 - 0.999**2)
    expected = 0.95 * np.array([0.45, 1.26]) - 0.5 * mean / (np.sqrt(square) + 1e-8)
    np.testing.assert_allclose(hard.vectors.detach()[0], expected, atol=1e-5)


def test_the_first_tokens_are_random_tokens_that_are_allowed():
    tower = open_tower(FakeEncoder())
    hard = HardTokens(tower, 30, 0.1, 0.1, seed=4)
    hard.project()
    assert set(hard.tokens) <= set(tower.allowed.tolist())
    assert len(set(hard.tokens)) > 5
    np.testing.assert_array_equal(hard.vectors.detach(), tower.vocabulary[hard.tokens])


def loss_of(encoder, shots, prompts):
    """Mean loss over all images and views, written plainly."""
    rows = encoder.encode_texts(prompts).astype(np.float64)
    views = shots.images.views(encoder)
    losses = []
    for image, label in zip(views, shots.labels, strict=True):
        for view in image:
            logits = encoder.logit_scale * rows @ view
            losses.append(np.log(np.exp(logits).sum()) - logits[label])
    return np.mean(losses)


def test_the_best_tokens_seen_are_kept_as_text():
    encoder = FakeEncoder()
    shots = colored(encoder, views=3)
    losses = []
    for steps in (1, 5, 60):
        fitted = PEZ(tokens=4, steps=steps, batch=4).fit(shots, POOL, encoder)
        texts = [text for bank in fitted.words() for text in bank]
        prompt = fitted.details["prompt"]
        assert texts == [f"{prompt} red.", f"{prompt} dark blue.", f"{prompt} green."]
        assert len(prompt.split()) == 4
        assert fitted.details["same_tokens"]
        assert fitted.details["best_step"] < steps
        losses.append(fitted.details["loss_of_tokens"])
        assert losses[-1] == pytest.approx(loss_of(encoder, shots, texts), abs=1e-5)
        assert fitted.details["loss_of_text"] == pytest.approx(losses[-1], abs=1e-5)
    assert losses[2] < losses[1] <= losses[0]


def test_epochs_are_as_many_steps_as_they_have_batches(monkeypatch):
    encoder = FakeEncoder()
    shots = colored(encoder, views=2)
    taken = []
    own = HardTokens.step
    monkeypatch.setattr(HardTokens, "step", lambda *given: (taken.append(1), own(*given)))
    batch = len(shots.labels) // 2  # so that an epoch has two
    PEZ(tokens=2, epochs=4, steps=1, batch=batch).fit(shots, POOL, encoder)
    assert len(taken) == 8
    taken.clear()
    PEZ(tokens=2, epochs=4, batch=len(shots.labels) + 1).fit(shots, POOL, encoder)
    assert len(taken) == 4


def test_transfer_lets_the_other_encoder_tokenise_the_text():
    one, other = FakeEncoder(dim=32, seed=0), FakeEncoder(dim=16, seed=1)
    shots = colored(one, other)
    fitted = PEZ(tokens=3, steps=10).fit(shots, POOL, one)
    moved = fitted.transfer(other)
    rows = other.encode_texts([text for bank in fitted.words() for text in bank])
    expected = other.logit_scale * shots.images.rows(other) @ rows.T
    np.testing.assert_allclose(moved.logits(shots.images), expected, atol=1e-4)
    assert moved.words() == fitted.words()


def test_text_that_is_read_as_other_tokens_is_said_and_used(monkeypatch):
    encoder = real("conse:lite0")
    number = encoder.text_tower()._tokenizer.token_to_id
    # Written together, "over" and "##all" are a token of their own.
    tokens = [number("over"), number("##all"), number("a")]
    monkeypatch.setattr(PEZ, "_search", lambda *_: (tokens, {"loss": 1.5, "step": 7}))
    shots = emoji(encoder, ("bird", "flower"), 1)
    fitted = PEZ(tokens=3).fit(shots, build_pool(["bird", "flower"]), encoder)
    assert fitted.details["prompt"] == "overall a"
    assert not fitted.details["same_tokens"]
    texts = ["overall a bird.", "overall a flower."]
    assert [list(bank) for bank in fitted.words()] == [[text] for text in texts]
    assert fitted.details["loss_of_tokens"] == 1.5
    assert fitted.details["loss_of_text"] == pytest.approx(loss_of(encoder, shots, texts), abs=1e-4)
    rows = encoder.encode_texts(texts)
    np.testing.assert_allclose(fitted.rows, rows, atol=1e-5)


def test_real_vocabularies_are_searched_and_the_text_moves():
    encoder, target = real("conse:lite0"), real("conse:lite2")
    shots = emoji(encoder, ("bird", "flower", "fish"), 2)
    fitted = PEZ(tokens=4, steps=15).fit(shots, build_pool(list(shots.class_names)), encoder)
    start = PEZ(tokens=4, steps=1).fit(shots, build_pool(list(shots.class_names)), encoder)
    assert fitted.details["loss_of_tokens"] < start.details["loss_of_tokens"]
    moved = fitted.transfer(target)
    texts = [text for bank in moved.words() for text in bank]
    np.testing.assert_allclose(moved.rows, target.encode_texts(texts), atol=1e-5)


def test_a_seed_is_a_result():
    encoder = FakeEncoder()
    shots = colored(encoder, views=2)

    def prompt(seed):
        return PEZ(tokens=4, steps=8, seed=seed).fit(shots, POOL, encoder).details["prompt"]

    assert prompt(1) == prompt(1)
    assert prompt(1) != prompt(2)


def test_what_cannot_be_done_is_refused_before_any_work():
    encoder = FakeEncoder()
    shots = colored(encoder)
    with pytest.raises(EncoderError, match="mine"):
        PEZ().check(shots, POOL, NoTower())
    with pytest.raises(SettingError, match="at most 74"):
        PEZ(tokens=75).check(shots, POOL, encoder)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokens": 0},
        {"steps": 0},
        {"epochs": 0},
        {"batch": 0},
        {"learning_rate": -1.0},
        {"weight_decay": -0.1},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        PEZ(**settings)

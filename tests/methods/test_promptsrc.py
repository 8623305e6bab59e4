from functools import lru_cache

import numpy as np
import pytest

pytest.importorskip("open_clip", reason="needs the extra clip")
torch = pytest.importorskip("torch", reason="needs the extra clip")

from PIL import Image  # noqa: E402

from promptboost.encoders.embedder import Embedder  # noqa: E402
from promptboost.encoders.fake import FakeEncoder  # noqa: E402
from promptboost.encoders.openclip.deep_prompts import PromptedTowers  # noqa: E402
from promptboost.encoders.store import EmbeddingStore  # noqa: E402
from promptboost.errors import DataError, EncoderError, SettingError  # noqa: E402
from promptboost.methods import FewShotSet, make_method  # noqa: E402
from promptboost.methods.archive import load_fitted, save_fitted  # noqa: E402
from promptboost.methods.base import RowImages, Transfer  # noqa: E402
from promptboost.methods.eft import EmulatedClassifier  # noqa: E402
from promptboost.methods.fitted import class_rows  # noqa: E402
from promptboost.methods.promptsrc import (  # noqa: E402
    PromptedClassifier,
    PromptSRC,
    TrainingImages,
    epoch_weights,
    self_consistency,
)
from promptboost.methods.registry import METHODS  # noqa: E402
from promptboost.methods.sentence_means import ZeroShot  # noqa: E402
from promptboost.pool import build_pool  # noqa: E402
from promptboost.testing import check_method  # noqa: E402
from tests.encoders.openclip.prompted_models import DEEP, UNSUITABLE, make_encoder  # noqa: E402

NAMES = ("fire", "ice", "grass")
COLOURS = [(230, 40, 20), (200, 20, 40), (30, 60, 230), (60, 90, 200), (20, 200, 40), (60, 180, 30)]
LABELS = np.repeat(np.arange(3), 2)
POOL = build_pool(NAMES, templates=["a photo of a {}.", "a drawing of a {}."])


class ImageImages:
    """Images in memory."""

    def __init__(self, images):
        self._images = list(images)

    def __len__(self):
        return len(self._images)

    def images(self):
        return iter(self._images)

    def rows(self, encoder):
        return encoder.encode_images(self._images)

    def views(self, encoder):
        return self.rows(encoder)[:, None]


class Untouchable(ImageImages):
    """Images that must not be looked at."""

    def images(self):
        raise AssertionError("an image was read")

    rows = views = images


IMAGES = ImageImages(Image.new("RGB", (40, 36), color) for color in COLOURS)
SHOTS = FewShotSet(IMAGES, LABELS, NAMES)
QUICK = PromptSRC(epochs=3, mean=3.0, std=1.0)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return lru_cache(lambda name, seed=0: make_encoder(name, folder, seed))


@pytest.fixture(scope="module")
def encoder(make):
    return make(DEEP)


@pytest.fixture(scope="module")
def quick(encoder):
    return QUICK.fit(SHOTS, POOL, encoder)


def log_softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.log(powers / powers.sum(axis=1, keepdims=True))


def test_the_loss_is_its_four_parts():
    rng = np.random.default_rng(0)

    def unit(n):
        rows = rng.normal(size=(n, 5))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    texts, images, old_texts, old_images = unit(3), unit(4), unit(3), unit(4)
    labels = np.array([2, 0, 1, 1])
    new, old = (log_softmax(7 * p @ t.T) for p, t in ((images, texts), (old_images, old_texts)))
    cross_entropy = -np.mean([new[i, label] for i, label in enumerate(labels)])
    on_texts = np.abs(texts - old_texts).sum() / (3 * 5)
    on_images = np.abs(images - old_images).sum() / (4 * 5)
    divergence = (np.exp(old) * (old - new)).sum() / (4 * 3)
    found = self_consistency(
        (torch.from_numpy(texts), torch.from_numpy(images)),
        (torch.from_numpy(old_texts), torch.from_numpy(old_images)),
        torch.from_numpy(labels),
        *(7.0, 25.0, 10.0),
    )
    expected = cross_entropy + 25 * on_texts + 10 * on_images + divergence
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_towers_that_moved_nowhere_cost_cross_entropy_only():
    same = torch.eye(2), torch.eye(2)
    found = self_consistency(same, same, torch.tensor([0, 1]), 1.0, 25.0, 10.0)
    assert float(found) == pytest.approx(np.log(1 + np.exp(-1)))


@pytest.mark.parametrize(
    ("epochs", "mean", "std"), [(50, 30, 30), (50, 45, 5), (20, 15, 1), (1, 30, 5)]
)
def test_epochs_weigh_as_the_normal_density(epochs, mean, std):
    density = [
        np.exp(-((t - mean) ** 2) / (2 * std**2)) / (std * np.sqrt(2 * np.pi))
        for t in range(1, epochs + 1)
    ]
    np.testing.assert_allclose(epoch_weights(epochs, mean, std), np.array(density) / sum(density))


def test_a_mean_beyond_the_last_epoch_takes_the_last_one():
    np.testing.assert_allclose(epoch_weights(3, 1000, 0.5), [0, 0, 1], atol=1e-12)


def test_prompts_are_the_weighted_mean_over_the_epochs(encoder):
    ends = [PromptSRC(epochs=3, mean=t, std=0.01).fit(SHOTS, POOL, encoder) for t in (1, 2, 3)]
    mixed = PromptSRC(epochs=3, mean=2, std=1).fit(SHOTS, POOL, encoder)
    weights = np.exp([-0.5, 0, -0.5])
    for name in ("text_prompts", "vision_prompts"):
        parts = [getattr(fitted, name) for fitted in ends]
        assert np.abs(parts[1] - parts[2]).max() > 1e-4
        expected = np.average(parts, axis=0, weights=weights)
        np.testing.assert_allclose(getattr(mixed, name), expected, atol=1e-6)


def test_the_first_epoch_only_warms_up(encoder):
    towers = PromptedTowers(encoder.model, encoder.tokenizer)
    rng = np.random.default_rng(0)
    start = towers.draw_prompts(rng, depth=9, text_tokens=4, vision_tokens=4).vision.numpy()
    first, second = (
        np.abs(
            PromptSRC(epochs=2, mean=t, std=0.01).fit(SHOTS, POOL, encoder).vision_prompts - start
        )
        for t in (1, 2)
    )
    assert 0 < first.max() < 0.05 * second.max()


def test_all_templates_of_the_pool_make_the_frozen_classes(encoder):
    def learned(*templates):
        pool = build_pool(NAMES, templates=templates)
        return PromptSRC(epochs=2, mean=2, std=0.1).fit(SHOTS, pool, encoder).text_prompts

    one, other = POOL.templates
    np.testing.assert_allclose(learned(one, other), learned(other, one), atol=1e-6)
    assert np.abs(learned(one, other) - learned(one)).max() > 1e-4


def test_it_lowers_its_loss(encoder):
    losses = PromptSRC(epochs=15).fit(SHOTS, POOL, encoder).details["losses"]
    assert len(losses) == 15
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])


@pytest.mark.parametrize("seed", [0, 1])
def test_it_beats_zero_shot_on_its_images(make, seed):
    # To towers that were never trained all names are nearly the same: the authors' weights would
    # hold the tuned ones at that.
    encoder = make(DEEP, seed)
    method = PromptSRC(text_weight=1.0, image_weight=1.0, mean=45.0, std=5.0)
    before = ZeroShot().fit(SHOTS, POOL, encoder).predict(IMAGES)
    assert (before == LABELS).mean() < 0.7
    assert method.fit(SHOTS, POOL, encoder).predict(IMAGES).tolist() == LABELS.tolist()


@pytest.mark.parametrize("weight", ["text_weight", "image_weight"])
def test_the_costs_hold_rows_near_to_the_frozen_ones(make, weight):
    encoder = make(DEEP, 1)
    others = {"epochs": 12, "text_weight": 0.0, "image_weight": 0.0}
    free = PromptSRC(**others).fit(SHOTS, POOL, encoder)
    held = PromptSRC(**(others | {weight: 50.0})).fit(SHOTS, POOL, encoder)
    banks = [{f"a photo of {n}.": 1.0, f"a drawing of {n}.": 1.0} for n in NAMES]
    if weight == "text_weight":
        frozen = class_rows(banks, encoder, unit=True)
        far, near = (np.abs(fitted.class_rows - frozen).mean() for fitted in (free, held))
    else:
        frozen = IMAGES.rows(encoder)
        far, near = (np.abs(fitted._rows(IMAGES) - frozen).mean() for fitted in (free, held))
    assert near < 0.7 * far


def test_the_model_is_left_as_it_was(make, encoder):
    before = {name: t.clone() for name, t in encoder.model.state_dict().items()}
    rows = encoder.encode_images(IMAGES.images())
    QUICK.fit(SHOTS, POOL, encoder).logits(IMAGES)
    assert all(torch.equal(t, before[name]) for name, t in encoder.model.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in encoder.model.parameters())
    np.testing.assert_array_equal(encoder.encode_images(IMAGES.images()), rows)


def test_what_it_gives(encoder, quick):
    assert isinstance(quick, PromptedClassifier)
    assert quick.text_prompts.shape == (4, 4, 16)  # all layers there are, below the depth of 9
    assert quick.vision_prompts.shape == (3, 4, 32)
    assert quick.class_rows.shape == (3, encoder.dim)
    np.testing.assert_allclose(np.linalg.norm(quick.class_rows, axis=1), 1, atol=1e-5)
    logits = quick.logits(IMAGES)
    assert logits.shape == (6, 3)
    assert logits.dtype == np.float32
    assert quick.words() is None
    assert quick.image_towers == (f"{encoder.id} with prompts",)
    assert quick.origin.method == "promptsrc?epochs=3&mean=3.0&std=1.0"


def test_logits_are_scaled_cosines_of_the_prompted_towers(encoder, quick):
    towers = PromptedTowers(encoder.model, encoder.tokenizer)
    pixels = torch.stack([encoder.preprocess(image) for image in IMAGES.images()])
    rows = towers.image_rows(pixels, torch.from_numpy(quick.vision_prompts)).numpy()
    texts = towers.text_rows(towers.class_tokens(NAMES, 4), torch.from_numpy(quick.text_prompts))
    np.testing.assert_allclose(quick.class_rows, texts, atol=1e-6)
    expected = encoder.logit_scale * rows @ texts.numpy().T
    np.testing.assert_allclose(quick.logits(IMAGES), expected, atol=1e-4)


def test_batches_do_not_matter_when_it_predicts(quick, encoder):
    alone = [quick.logits(ImageImages([image])) for image in IMAGES.images()]
    np.testing.assert_allclose(np.concatenate(alone), quick.logits(IMAGES), atol=1e-4)
    assert quick.logits(ImageImages([])).shape == (0, 3)


def test_the_seed_decides(encoder, quick):
    again = QUICK.fit(SHOTS, POOL, encoder)
    other = PromptSRC(epochs=3, mean=3.0, std=1.0, seed=1).fit(SHOTS, POOL, encoder)
    np.testing.assert_array_equal(again.vision_prompts, quick.vision_prompts)
    np.testing.assert_array_equal(again.class_rows, quick.class_rows)
    assert not np.array_equal(other.vision_prompts, quick.vision_prompts)


def test_a_store_before_the_encoder_changes_nothing(encoder, quick, tmp_path):
    stored = Embedder(encoder, EmbeddingStore(tmp_path))
    fitted = QUICK.fit(SHOTS, POOL, stored)
    np.testing.assert_allclose(fitted.logits(IMAGES), quick.logits(IMAGES), atol=1e-4)


def test_saved_and_loaded_it_gives_the_same_logits(encoder, quick, tmp_path):
    save_fitted(quick, tmp_path)
    loaded = load_fitted(tmp_path, encoder)
    assert isinstance(loaded, PromptedClassifier)
    np.testing.assert_array_equal(loaded.logits(IMAGES), quick.logits(IMAGES))
    assert loaded.details == quick.details


def test_it_is_emulated_on_another_encoder_with_three_passes(make, encoder, quick):
    target = make(DEEP, 1)
    emulated = quick.transfer(target)
    assert PromptSRC.carries_over is Transfer.EMULATED
    assert isinstance(emulated, EmulatedClassifier)
    assert emulated.image_towers == (target.id, encoder.id, f"{encoder.id} with prompts")
    plain = {e: ZeroShot().fit(SHOTS, POOL, e).logits(IMAGES) for e in (encoder, target)}
    expected = plain[target] + quick.logits(IMAGES) - plain[encoder]
    np.testing.assert_allclose(emulated.logits(IMAGES), expected, atol=1e-4)


@pytest.mark.parametrize("name", UNSUITABLE)
def test_other_towers_are_refused_before_any_work(make, name):
    shots = FewShotSet(Untouchable(IMAGES.images()), LABELS, NAMES)
    with pytest.raises(EncoderError, match=rf"a ViT of open_clip.* with {name}-0 use coop or logi"):
        PromptSRC().check(shots, POOL, make(name))
    with pytest.raises(EncoderError, match="a ViT of open_clip"):
        PromptSRC().fit(shots, POOL, make(name))


def test_encoders_that_are_not_of_open_clip_are_refused():
    shots = FewShotSet(Untouchable(IMAGES.images()), LABELS, NAMES)
    with pytest.raises(EncoderError, match="fake:32-0 has no such tower"):
        PromptSRC().check(shots, POOL, FakeEncoder())


def test_checking_opens_no_image(encoder):
    def never():
        raise AssertionError("an image was read")
        yield

    class Lazy(Untouchable):
        def images(self):
            return never()

    PromptSRC().check(FewShotSet(Lazy(IMAGES.images()), LABELS, NAMES), POOL, encoder)


def test_images_names_and_templates_that_cannot_be_used_are_refused(encoder):
    rows = RowImages({encoder.id: IMAGES.views(encoder)})
    with pytest.raises(DataError, match="give the images themselves"):
        PromptSRC().check(FewShotSet(rows, LABELS, NAMES), POOL, encoder)
    with pytest.raises(DataError, match="there are none"):
        PromptSRC().check(FewShotSet(ImageImages([]), LABELS[:0], NAMES), POOL, encoder)
    long = FewShotSet(IMAGES, LABELS, (*NAMES[:2], "owl " * 30))
    with pytest.raises(EncoderError, match="give it a shorter name"):
        PromptSRC().check(long, POOL, encoder)
    sentences = {name: [f"{name} is nice"] for name in NAMES}
    bare = build_pool(NAMES, templates=[], descriptions=sentences)
    with pytest.raises(SettingError, match="the pool has none"):
        PromptSRC().check(SHOTS, bare, encoder)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("depth", 0),
        ("text_tokens", 0),
        ("vision_tokens", 0),
        ("epochs", 0),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("learning_rate", np.nan),
        ("std", 0.0),
        ("mean", np.inf),
        ("text_weight", -1.0),
        ("image_weight", np.nan),
        ("seed", -1),
    ],
)
def test_settings_that_cannot_be_are_refused(setting, value):
    with pytest.raises(SettingError, match=f"^{setting} is {value}, but must be"):
        PromptSRC(**{setting: value})


def test_the_registry_has_it_as_specified():
    method = make_method("promptsrc")
    assert method == PromptSRC(
        depth=9,
        text_tokens=4,
        vision_tokens=4,
        epochs=50,
        batch_size=4,
        learning_rate=0.0025,
        text_weight=25.0,
        image_weight=10.0,
        mean=30.0,
        std=30.0,
    )
    assert "re-implemented" in METHODS["promptsrc"].label


def training_images(encoder, seed=0):
    rng = np.random.default_rng(0)
    sizes = [(40, 36), (200, 20), (7, 90), (33, 32), (64, 64)]
    images = [Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)) for size in sizes]
    return TrainingImages(images, np.arange(5), encoder.preprocess, (32, 32), seed)


def test_an_epoch_sees_every_image_once_in_its_own_crops(encoder):
    images = training_images(encoder)
    first, second = (list(images.batches(epoch, 1)) for epoch in (0, 1))
    assert [len(labels) for _, labels in first] == [1] * 5
    for epoch in (first, second):
        assert sorted(torch.cat([labels for _, labels in epoch]).tolist()) == [0, 1, 2, 3, 4]
        assert torch.cat([pixels for pixels, _ in epoch]).shape == (5, 3, 32, 32)

    def by_label(epoch):
        pixels = torch.cat([pixels for pixels, _ in epoch])
        return pixels[torch.cat([labels for _, labels in epoch]).argsort()]

    again = by_label(list(training_images(encoder).batches(0, 1)))
    other = by_label(list(training_images(encoder, seed=1).batches(0, 1)))
    torch.testing.assert_close(again, by_label(first), atol=0, rtol=0)
    for i in range(5):
        assert not torch.equal(by_label(first)[i], by_label(second)[i])
        assert not torch.equal(by_label(first)[i], other[i])


@pytest.mark.parametrize(("size", "sizes"), [(2, [2, 2]), (3, [3]), (5, [5]), (9, [5])])
def test_an_incomplete_batch_is_left_out_unless_it_is_the_only_one(encoder, size, sizes):
    batches = list(training_images(encoder).batches(0, size))
    assert [len(labels) for _, labels in batches] == [len(pixels) for pixels, _ in batches] == sizes


def test_a_rate_at_which_it_breaks_down_is_named(encoder):
    wild = PromptSRC(epochs=4, learning_rate=1e38)
    with pytest.raises(SettingError, match=r"no longer a number in epoch .*learning_rate=1e\+37"):
        wild.fit(SHOTS, POOL, encoder)


def test_crops_fill_the_whole_image_that_the_tower_sees(encoder):
    # Were a crop not brought to size first, the encoder's center crop would cut its ends off.
    image = Image.new("RGB", (64, 64))
    image.paste((255, 0, 0), (0, 0, 64, 64))
    images = TrainingImages(
        [image], np.array([0]), lambda view: torch.tensor(view.size), (32, 48), 0
    )
    pixels, _ = next(images.batches(0, 1))
    assert pixels.tolist() == [[48, 32]]


def test_the_check_of_methods_finds_nothing(encoder):
    assert check_method(PromptSRC(epochs=2), encoder=encoder) == []

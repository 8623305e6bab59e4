import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as random_arrays

from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import SettingError
from promptboost.methods import FittedMethod
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import Origin, RowImages
from promptboost.methods.eft import emulate
from promptboost.methods.fitted import LinearClassifier, TextClassifier

SOURCE, TARGET, THIRD = (FakeEncoder(dim=8 + i, seed=i) for i in range(3))
NAMES = ("apple", "fire_truck", "ice")
SEEN = ["a red apple", "red", "blue ice", "a truck", "something green"]
IMAGES = RowImages({e.id: e.encode_texts(SEEN)[:, None] for e in (SOURCE, TARGET, THIRD)})


class Shifted(FittedMethod):
    """Another classifier, with something added to all logits of each image."""

    def __init__(self, inner, shifts):
        self.inner, self.shifts, self.origin = inner, shifts, inner.origin

    def logits(self, images):
        return self.inner.logits(images) + self.shifts[:, None]


def tuned_on(encoder=SOURCE, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, 5, (len(NAMES), encoder.dim)).astype(np.float32)
    intercepts = rng.normal(0, 1, len(NAMES)).astype(np.float32)
    return LinearClassifier(Origin("coop", NAMES, encoder), rows, intercepts)


def plain_logits(encoder, texts):
    return 20.0 * IMAGES.rows(encoder) @ encoder.encode_texts(texts).T


PLAIN = ["a photo of an apple.", "a photo of a fire truck.", "a photo of ice."]


def test_it_is_the_formula():
    tuned = tuned_on()
    after = IMAGES.rows(SOURCE) @ tuned.rows.T + tuned.intercepts
    expected = plain_logits(TARGET, PLAIN) + after - plain_logits(SOURCE, PLAIN)
    emulated = emulate(tuned, TARGET)
    np.testing.assert_allclose(emulated.logits(IMAGES), expected, rtol=1e-4, atol=1e-4)
    assert emulated.logits(IMAGES).dtype == np.float32
    assert emulated.predict(IMAGES).tolist() == expected.argmax(axis=1).tolist()


def test_probabilities_are_the_product_of_target_and_change():
    def softmax(logits):
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    tuned = tuned_on()
    product = (
        softmax(plain_logits(TARGET, PLAIN))
        * softmax(tuned.logits(IMAGES))
        / softmax(plain_logits(SOURCE, PLAIN))
    )
    product /= product.sum(axis=1, keepdims=True)
    found = softmax(emulate(tuned, TARGET).logits(IMAGES))
    np.testing.assert_allclose(found, product, rtol=1e-3, atol=1e-6)


def test_nothing_learned_is_the_target_alone():
    banks = tuple({text: 1.0} for text in PLAIN)
    untouched = TextClassifier(Origin("x", NAMES, SOURCE), banks)
    expected = TextClassifier(Origin("x", NAMES, TARGET), banks)
    np.testing.assert_array_equal(
        emulate(untouched, TARGET).logits(IMAGES), expected.logits(IMAGES)
    )


def test_the_source_itself_as_target_gives_the_tuned_classifier_back():
    tuned = tuned_on()
    found = emulate(tuned, SOURCE)
    np.testing.assert_allclose(found.logits(IMAGES), tuned.logits(IMAGES), atol=1e-4)
    assert found.image_towers == (SOURCE.id,)


@given(shifts=random_arrays(np.float32, len(SEEN), elements=st.floats(-50, 50, width=32)))
def test_what_is_added_to_all_classes_of_a_image_changes_no_prediction(shifts):
    # For example the bias of SigLIP, or log-probabilities in the place of logits.
    tuned = tuned_on()
    emulated = emulate(tuned, TARGET)
    shifted = emulate(Shifted(tuned, shifts), TARGET)
    assert shifted.predict(IMAGES).tolist() == emulated.predict(IMAGES).tolist()


def test_it_says_what_it_costs():
    class OwnTower(LinearClassifier):
        @property
        def image_towers(self):
            return (f"{self.origin.encoder.id} with prompts",)

    tuned = tuned_on()
    assert emulate(tuned, TARGET).image_towers == (TARGET.id, SOURCE.id)
    own = OwnTower(tuned.origin, tuned.rows, tuned.intercepts)
    assert emulate(own, TARGET).image_towers == (
        TARGET.id,
        SOURCE.id,
        f"{SOURCE.id} with prompts",
    )


def test_it_is_named_after_what_it_carries_and_has_no_words():
    emulated = emulate(tuned_on(), TARGET)
    assert emulated.origin.method == "coop + EFT"
    assert emulated.origin.encoder is TARGET
    assert emulated.source is SOURCE
    assert emulated.words() is None


def test_it_goes_on_to_a_third_encoder_from_the_source():
    emulated = emulate(tuned_on(), TARGET)
    moved = emulated.transfer(THIRD)
    expected = emulate(tuned_on(), THIRD)
    np.testing.assert_array_equal(moved.logits(IMAGES), expected.logits(IMAGES))
    with pytest.raises(SettingError, match=r"emulated already; its transfer\(\)"):
        emulate(emulated, THIRD)


def test_it_is_saved_as_its_tuned_classifier(tmp_path):
    with pytest.raises(
        SettingError, match=r"coop \+ EFT is emulated and cannot be saved; save its"
    ):
        save_fitted(emulate(tuned_on(), TARGET), tmp_path / "emulated")
    assert not list(tmp_path.iterdir())
    save_fitted(tuned_on(), tmp_path)
    again = emulate(load_fitted(tmp_path, SOURCE), TARGET)
    np.testing.assert_array_equal(again.logits(IMAGES), emulate(tuned_on(), TARGET).logits(IMAGES))

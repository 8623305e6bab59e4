import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as random_arrays

from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import EncoderError, FileFormatError, SettingError
from promptboost.methods import FittedMethod
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import Origin, RowImages
from promptboost.methods.eft import EmulatedClassifier, emulate, load_emulated
from promptboost.methods.fitted import LinearClassifier, TextClassifier

SOURCE, TARGET, THIRD = (FakeEncoder(dim=8 + i, seed=i) for i in range(3))
NAMES = ("apple", "fire_truck", "ice")
SEEN = ["a red apple", "red", "blue ice", "a truck", "something green"]
IMAGES = RowImages({e.id: e.encode_texts(SEEN)[:, None] for e in (SOURCE, TARGET, THIRD)})


class Shifted(FittedMethod):
    """Another classifier, with something added to all logits of each image."""

    kind = "shifted"

    def __init__(self, inner, shifts):
        self.inner, self.shifts, self.origin = inner, shifts, inner.origin

    def logits(self, images):
        return self.inner.logits(images) + self.shifts[:, None]

    def state(self):
        raise AssertionError("not saved here")

    from_state = state


def tuned_on(encoder=SOURCE, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, 5, (len(NAMES), encoder.dim)).astype(np.float32)
    intercepts = rng.normal(0, 1, len(NAMES)).astype(np.float32)
    return LinearClassifier(Origin("coop", NAMES, encoder), rows, intercepts)


def plain_logits(encoder, texts):
    return 20.0 * IMAGES.rows(encoder) @ encoder.encode_texts(texts).T


PLAIN = ["a photo of an apple.", "a photo of a fire truck.", "a photo of an ice."]


@pytest.mark.parametrize("strength", [1.0, 0.3, 2.0])
def test_it_is_the_formula(strength):
    tuned = tuned_on()
    after = IMAGES.rows(SOURCE) @ tuned.rows.T + tuned.intercepts
    expected = plain_logits(TARGET, PLAIN) + strength * (after - plain_logits(SOURCE, PLAIN))
    emulated = emulate(tuned, TARGET, strength=strength)
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


def test_strength_zero_is_the_target_alone():
    expected = TextClassifier(Origin("x", NAMES, TARGET), tuple({text: 1.0} for text in PLAIN))
    emulated = emulate(tuned_on(), TARGET, strength=0.0)
    np.testing.assert_array_equal(emulated.logits(IMAGES), expected.logits(IMAGES))


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
    assert found.encoders_asked == (SOURCE.id,)


def test_both_zero_shot_classifiers_say_the_template():
    texts = ["a drawing of apple", "a drawing of fire truck", "a drawing of ice"]
    tuned = tuned_on()
    expected = plain_logits(TARGET, texts) + tuned.logits(IMAGES) - plain_logits(SOURCE, texts)
    found = emulate(tuned, TARGET, template="a drawing of {}").logits(IMAGES)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


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
        def encoders_asked(self):
            return (f"{self.origin.encoder.id} with prompts",)

    tuned = tuned_on()
    assert emulate(tuned, TARGET).encoders_asked == (TARGET.id, SOURCE.id)
    own = OwnTower(tuned.origin, tuned.rows, tuned.intercepts)
    assert emulate(own, TARGET).encoders_asked == (
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
    emulated = emulate(tuned_on(), TARGET, strength=0.5, template="one {}")
    moved = emulated.transfer(THIRD)
    expected = emulate(tuned_on(), THIRD, strength=0.5, template="one {}")
    np.testing.assert_array_equal(moved.logits(IMAGES), expected.logits(IMAGES))
    with pytest.raises(SettingError, match=r"emulated already; its transfer\(\)"):
        emulate(emulated, THIRD)


@pytest.mark.parametrize("strength", [-0.1, float("nan"), float("inf")])
def test_a_strength_that_cannot_be_is_refused(strength):
    with pytest.raises(SettingError, match="strength is"):
        emulate(tuned_on(), TARGET, strength=strength)


@pytest.mark.parametrize("template", ["a photo", "{} and {}"])
def test_a_template_without_its_place_is_refused(template):
    with pytest.raises(SettingError, match=r"one \{\} for the class name"):
        emulate(tuned_on(), TARGET, template=template)


@pytest.mark.parametrize("text", [False, True])
def test_saved_and_loaded_it_gives_the_same_logits(tmp_path, text):
    banks = ({"red": 1.0, "fruit": 2.0}, {"truck": 1.0}, {"blue": 1.0})
    tuned = TextClassifier(Origin("tpb", NAMES, SOURCE), banks) if text else tuned_on()
    emulated = emulate(tuned, TARGET, strength=0.7, template="one {}")
    save_fitted(emulated, tmp_path)
    loaded = load_emulated(tmp_path, SOURCE, TARGET)
    assert isinstance(loaded, EmulatedClassifier)
    np.testing.assert_array_equal(loaded.logits(IMAGES), emulated.logits(IMAGES))
    assert loaded.origin == emulated.origin
    assert (tmp_path / "arrays.safetensors").exists() is not text


def test_one_encoder_is_not_enough_to_load_it(tmp_path):
    save_fitted(emulate(tuned_on(), TARGET), tmp_path)
    with pytest.raises(
        EncoderError, match=rf"{SOURCE.id}\) and {TARGET.id}.*load_emulated\(folder"
    ):
        load_fitted(tmp_path, TARGET)


def test_other_encoders_are_refused_at_loading(tmp_path):
    save_fitted(emulate(tuned_on(), TARGET), tmp_path)
    with pytest.raises(
        FileFormatError, match=f"fitted on '{SOURCE.id}', and {THIRD.id} is another"
    ):
        load_emulated(tmp_path, THIRD, TARGET)
    with pytest.raises(FileFormatError, match=f"on '{TARGET.id}', and {THIRD.id} is another"):
        load_emulated(tmp_path, SOURCE, THIRD)


def test_what_is_not_emulated_is_refused_at_loading(tmp_path):
    save_fitted(tuned_on(), tmp_path)
    with pytest.raises(FileFormatError, match=r"'linear', which is not emulated; .* load_fitted"):
        load_emulated(tmp_path, SOURCE, TARGET)


@pytest.mark.parametrize(
    "damage",
    [
        {"tuned": None},
        {"tuned": {}},
        {"tuned": [1]},
        {"strength": "much"},
        {"strength": None},
        {"encoder": None},
        {"encoder": {}},
        {"kind": ["eft"]},
        {"arrays": None},
    ],
)
def test_a_damaged_file_is_named(tmp_path, damage):
    save_fitted(emulate(tuned_on(), TARGET), tmp_path)
    path = tmp_path / "method.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(FileFormatError, match=r"method\.json"):
        load_emulated(tmp_path, SOURCE, TARGET)

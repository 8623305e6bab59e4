"""The fitted estimator as the object that answers: saved, loaded, moved."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss

from promptboost import estimator
from promptboost.data.dataset import RepeatedImageWarning
from promptboost.errors import DataError, EncoderError, SettingError
from promptboost.estimator import PromptBoostClassifier
from promptboost.model.classifier import PromptClassifier, load
from promptboost.model.ensemble import EncoderRecord
from promptboost.training.residual_refit import NoPoolWarning, refit

SENTENCES = {"fire": ["it is very red"], "ice": ["it is very blue"], "moss": ["it is very green"]}
TONES = {"fire": (200, 20, 20), "ice": (20, 20, 200), "moss": (20, 200, 20)}


def draw(count, seed):
    rng = np.random.default_rng(seed)
    y = np.array([name for name in TONES for _ in range(count)])
    X = [
        Image.fromarray(
            np.clip(np.array(TONES[name]) + rng.normal(0, 40, (24, 24, 3)), 0, 255).astype(np.uint8)
        )
        for name in y
    ]
    return X, y


@pytest.fixture(scope="module")
def fitted():
    return PromptBoostClassifier("fake:48-0", SENTENCES, random_state=0).fit(*draw(4, 0))


def test_the_classifier_answers_as_the_estimator_does(fitted):
    X, _ = draw(3, 1)
    classifier = fitted.classifier_
    assert isinstance(classifier, PromptClassifier)
    assert classifier.ensemble is fitted.ensemble_
    assert list(classifier.predict(X)) == fitted.predict(X).tolist()
    np.testing.assert_allclose(classifier.predict_proba(X), fitted.predict_proba(X), rtol=1e-4)


def test_it_is_saved_and_read_again(fitted, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "cache"))
    fitted = clone(fitted).fit(*draw(4, 0))
    X, _ = draw(3, 1)
    fitted.save(tmp_path / "kept")
    assert fitted.head_.residual is not None
    load(tmp_path / "kept").predict(X)
    assert not caplog.text
    again = PromptBoostClassifier.load(tmp_path / "kept")
    assert (again.predict(X) == fitted.predict(X)).all()
    np.testing.assert_allclose(again.predict_proba(X), fitted.predict_proba(X), rtol=1e-6)


@pytest.mark.parametrize("empty", [[], (), np.array([])])
def test_no_images_are_called_so(fitted, empty):
    """A pattern that matches no file is the mistake of the first minute."""
    for use in (lambda: clone(fitted).fit(empty, []), lambda: fitted.predict(empty)):
        with pytest.raises(DataError, match="X is empty: pass images"):
            use()


def test_probabilities_are_on_the_scale_of_the_fit(fitted):
    X, y = draw(12, 2)
    probabilities = fitted.predict_proba(X)
    assert fitted.ensemble_.logit_scale is not None
    scale = fitted.head_.text_scale
    rows = fitted.classifier_.encoder.encode_images(X)
    np.testing.assert_allclose(
        probabilities, fitted.head_.predict_proba(rows, scale), rtol=1e-4, atol=1e-9
    )
    text = fitted.head_.without_residual()
    flat = text.predict_proba(rows, 1.0)
    assert log_loss(y, text.predict_proba(rows)) < log_loss(y, flat)
    assert log_loss(y, probabilities) < log_loss(y, flat)
    words = PromptClassifier(fitted.ensemble_, fitted.encoder, fitted.head_, text_only=True)
    np.testing.assert_allclose(
        words.predict_proba(rows),
        text.predict_proba(rows, fitted.ensemble_.logit_scale),
    )


def test_only_sentences_make_a_classifier():
    with pytest.raises(NotFittedError):
        _ = PromptBoostClassifier("fake:48-0").classifier_
    prototypes = PromptBoostClassifier().fit(np.eye(4), ["a", "a", "b", "b"])
    with pytest.raises(SettingError, match="prototypes"):
        _ = prototypes.classifier_
    assert not hasattr(prototypes, "classifier_")
    assert "PromptBoostClassifier" in prototypes._repr_html_(), "it asks for all attributes"


def test_an_encoder_exchanged_after_the_fit_is_noticed(fitted):
    X, y = draw(2, 0)
    other = clone(fitted).set_params(cache=False).fit(X, y).set_params(encoder="fake:48-1")
    with pytest.raises(EncoderError, match="the head was made with the encoder 'fake:48-0'"):
        other.classifier_.predict(X)
    other.set_params(encoder=["fake:48-0", "fake:48-1"], average=True).fit(X, y)
    other.set_params(encoder="fake:48-0")
    with pytest.raises(EncoderError, match="'fake:48-0', 'fake:48-1', but encoder is 'fake:48-0'"):
        other.predict(X)


@pytest.mark.parametrize("average", [False, True])
def test_a_file_imports_no_code(fitted, tmp_path, monkeypatch, average):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "strange.py").write_text("raise SystemExit('imported')")
    named = [EncoderRecord("strange:Encoder"), EncoderRecord("fake:48-0")]
    first, second = named[::-1] if average else named
    text = replace(fitted.ensemble_, encoder_id=first.id, further_encoders=(second,))
    text.save(tmp_path / "ensemble.json")
    with pytest.raises(EncoderError, match="code that would be imported"):
        PromptBoostClassifier.load(tmp_path, average=average)
    assert PromptBoostClassifier.load(tmp_path, "fake:48-0").encoder == "fake:48-0"


def test_a_file_contacts_no_hub_unasked(fitted, tmp_path, monkeypatch):
    fitted.save(tmp_path)
    asked = []
    monkeypatch.setattr(
        estimator,
        "check_trusted",
        lambda name, *, allow_download: asked.append((name, allow_download)),
    )
    for given in ({}, {"allow_download": True}, {"encoder": "fake:16-1"}):
        PromptBoostClassifier.load(tmp_path, **given)
    assert asked == [("fake:48-0", False), ("fake:48-0", True)]


def test_a_search_may_set_booleans_of_numpy(fitted):
    X, y = draw(2, 0)
    words = clone(fitted).set_params(residual=np.bool_(False)).fit(X, y)
    assert words.head_.residual is None


@pytest.mark.parametrize("kind", ["image", "path", "array"])
def test_one_image_under_two_labels_is_warned_of(kind, tmp_path):
    X, y = draw(2, 0)
    X[-1] = X[0].copy()
    if kind == "path":
        for number, image in enumerate(X):
            image.save(tmp_path / f"{number}.png")
        X = [tmp_path / f"{number}.png" for number in range(len(X))]
    if kind == "array":
        X = [np.asarray(image) for image in X]
    model = PromptBoostClassifier("fake:48-0", SENTENCES, n_views=0, cache=False, random_state=0)
    with pytest.warns(RepeatedImageWarning, match=r"2 images .*\(fire\) = .*\(moss\)"):
        model.fit(X, y)


@pytest.mark.parametrize("residual", [True, False])
def test_a_class_added_by_words_is_in_balance_for_every_face(fitted, tmp_path, residual):
    X, y = draw(4, 0)
    text = fitted.ensemble_.add_class("sun", ["it is very yellow"])
    with pytest.warns(NoPoolWarning, match="weighted like a plain template"):
        refit(PromptClassifier(text, "fake:48-0"), X, y, views=2).save(tmp_path / "kept")
    kept = load(tmp_path / "kept", "fake:48-0", text_only=not residual)
    assert kept.head.balance is not None
    expected = kept.predict_proba(X)
    again = PromptBoostClassifier.load(tmp_path / "kept", residual=residual)
    np.testing.assert_allclose(again.predict_proba(X), expected, rtol=1e-4)
    kept.save(tmp_path / "again")  # of the words alone, too
    saved = load(tmp_path / "again", "fake:48-0", text_only=not residual)
    np.testing.assert_allclose(saved.predict_proba(X), expected, rtol=1e-6)
    unbalanced = PromptClassifier(text, "fake:48-0").predict_proba(X)
    assert np.abs(expected - unbalanced).max() > 0.01

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import promptboost
from promptboost import PromptBoostClassifier, PromptClassifier, load
from promptboost.data.decode import ImageError
from promptboost.encoders.embedder import StoreWarning
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import (
    DataError,
    EmbeddingError,
    EmbeddingLengthWarning,
    EncoderError,
    InputError,
    LabelError,
    SettingError,
)
from promptboost.model import Head, PromptEnsemble, Round
from promptboost.pool import build_pool
from promptboost.training.residual_refit import NoPoolWarning, refit

BANKS = {
    "fire": {"something red": 2, "a red light": 1},
    "grass": {"something green": 1},
    "ice": {"something blue": 1},
}


def ensemble(**fields):
    return PromptEnsemble(tuple(BANKS), (Round("{}", BANKS, 0.0, 0.1),), **fields)


def image(color="red", size=(12, 9)):
    return Image.new("RGB", size, color)


@pytest.fixture
def classifier():
    return PromptClassifier(ensemble(), "fake:32-0", cache=False)


def as_file(folder, color="red"):
    path = Path(folder) / f"{color}.png"
    image(color).save(path)
    return path


# --- one image, in every form -------------------------------------------------------------------


def test_every_form_of_one_image_gets_the_same_answer(classifier, tmp_path):
    torch = pytest.importorskip("torch")
    path, pixels = as_file(tmp_path), np.asarray(image())
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    forms = [path, str(path), path.read_bytes(), image(), pixels, tensor, tensor.float() / 255]
    forms += [(tensor.float() / 255).to(torch.float64).requires_grad_()]
    expected = classifier.predict_proba([image()])
    assert expected.shape == (1, 3)
    for form in forms:
        for images in (form, [form], (form,)):
            assert classifier.predict_proba(images) == pytest.approx(expected, abs=1e-6)
            assert classifier.predict(images).tolist() == ["fire"]


def test_many_images_in_every_form(classifier, tmp_path):
    torch = pytest.importorskip("torch")
    colors = ["red", "lime", "blue", "red"]
    pixels = np.stack([np.asarray(image(color)) for color in colors])
    tensors = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    paths = [as_file(tmp_path, color) for color in colors]
    forms = [paths, np.array([str(p) for p in paths]), pixels, list(pixels), tensors, list(tensors)]
    forms += [tensors.float() / 255, (image(color) for color in colors), pixels / 255.0]
    for form in forms:
        assert classifier.predict(form).tolist() == ["fire", "grass", "ice", "fire"]


def test_embeddings(classifier):
    torch = pytest.importorskip("torch")
    rows = FakeEncoder().encode_images([image(), image("blue")])
    chances = classifier.predict_proba(rows)
    assert classifier.predict(rows).tolist() == ["fire", "ice"]
    assert (chances == classifier.predict_proba([image(), image("blue")])).all()
    for one in (rows[0], rows[0].tolist(), torch.from_numpy(rows[0]), rows[0].astype(float)):
        assert classifier.predict(one).tolist() == ["fire"]
    both = [torch.from_numpy(row) for row in rows]
    assert classifier.predict(both).tolist() == ["fire", "ice"]
    assert classifier.predict(rows.tolist()).tolist() == ["fire", "ice"]
    assert classifier.predict(rows[:0]).tolist() == []


@pytest.mark.parametrize("factor", [1e-30, 0.5, 8, 1e30])
def test_embeddings_of_any_length_are_scaled(classifier, factor):
    rows = FakeEncoder().encode_images([image(), image("blue")])
    scaled = rows * np.array([[factor], [1.0]], dtype=np.float32)
    # A plain oracle: each row divided by its length.
    unit = scaled.astype(np.float64) / np.linalg.norm(scaled.astype(np.float64), axis=1)[:, None]
    for method in ("predict_proba", "decision_function", "embeddings"):
        with pytest.warns(EmbeddingLengthWarning, match="not between 0.9 and 1.1"):
            answer = getattr(classifier, method)(scaled)
        np.testing.assert_allclose(answer, getattr(classifier, method)(unit), atol=1e-6)
        np.testing.assert_allclose(answer, getattr(classifier, method)(rows), atol=1e-6)
    with pytest.warns(EmbeddingLengthWarning):
        top = classifier.top_k(scaled, k=2)
    assert [[name for name, _ in row] for row in top] == [
        [name for name, _ in row] for row in classifier.top_k(rows, k=2)
    ]
    with pytest.warns(EmbeddingLengthWarning):
        margins = [explanation.margin for explanation in classifier.explain(scaled)]
    expected = [explanation.margin for explanation in classifier.explain(rows)]
    assert margins == pytest.approx(expected, rel=1e-5)


FACTORS = st.lists(st.floats(-30, 30).map(lambda power: 10**power), min_size=4, max_size=4)


@settings(max_examples=8, deadline=None)
@given(FACTORS)
@pytest.mark.filterwarnings("ignore::promptboost.errors.EmbeddingLengthWarning")
def test_no_answer_depends_on_the_length_of_an_embedding(factors):
    encoder, names = FakeEncoder(), ["fire", "fire", "ice", "ice"]
    rows = encoder.encode_images([image(c) for c in ("red", "tomato", "blue", "navy")])
    rows = rows.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    scaled = rows * np.array(factors)[:, None]
    classifier = PromptClassifier(ensemble(), encoder, cache=False)
    expected = classifier.predict_proba(rows)
    np.testing.assert_allclose(classifier.predict_proba(scaled), expected, atol=1e-6)
    fitted = [
        PromptBoostClassifier(encoder, cache=False, random_state=0).fit(X, names)
        for X in (rows, scaled)
    ]
    np.testing.assert_allclose(*(model.predict_proba(scaled) for model in fitted), atol=1e-4)


def test_lengths_near_one_are_scaled_without_a_warning(classifier):
    rows = FakeEncoder().encode_images([image(), image("blue")])
    expected = classifier.predict_proba(rows)
    for near in (1.05 * rows, 0.95 * rows, rows.astype(np.float16)):  # warnings are errors here
        np.testing.assert_allclose(classifier.predict_proba(near), expected, atol=2e-3)
    np.testing.assert_allclose(classifier.predict_proba(1.05 * rows), expected, atol=1e-6)


def test_bad_embeddings_are_named(classifier):
    rows = np.tile(FakeEncoder().encode_images([image()]), (5, 1))
    for bad, problem in ((np.nan, "not finite"), (np.inf, "not finite"), (0.0, "all zero")):
        wrong = rows.copy()
        wrong[[2, 4]] = bad
        message = f"2 of 5 embeddings are {problem}, the first is row 2"
        for method in ("predict", "predict_proba", "explain", "top_k", "embeddings"):
            with pytest.raises(EmbeddingError, match=message):
                getattr(classifier, method)(wrong)
        with pytest.raises(EmbeddingError, match=message):
            refit(classifier, wrong, ["fire", "ice", "fire", "ice", "ice"])


def test_refit_scales_embeddings():
    encoder = FakeEncoder()
    classifier = PromptClassifier(ensemble(), encoder, cache=False)
    names = ["fire", "grass", "ice"] * 4
    colors = ["red", "lime", "blue", "tomato", "green", "navy"] * 2
    rows = encoder.encode_images([image(color) for color in colors])
    pool = build_pool(classifier.class_names)
    expected = refit(classifier, rows, names, pool).predict_proba(rows)
    with pytest.warns(EmbeddingLengthWarning):
        scaled = refit(classifier, 8 * rows, names, pool)
    np.testing.assert_allclose(scaled.predict_proba(rows), expected, atol=1e-4)


def test_refit_refuses_missing_labels(classifier):
    rows = FakeEncoder().encode_images([image(), image("blue"), image("lime")])
    for missing in (None, np.nan, "", "nan"):
        with pytest.raises(LabelError, match="1 of 3 labels are missing, the first at position 1"):
            refit(classifier, rows, ["fire", missing, "ice"])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.zeros((150, 100, 3)), DataError, r"one image give \(255 \* image\)"),
        (np.zeros((3, 150, 100), np.uint8), DataError, r"moveaxis\(images, 0, -1\)"),
        (np.zeros((2, 3, 150, 100), np.uint8), DataError, r"moveaxis\(images, 1, -1\)"),
        (np.zeros((7, 150, 100), np.uint8), DataError, "list of arrays"),
        (np.zeros((2, 2, 5, 5, 3), np.uint8), DataError, "neither one image"),
        (np.zeros((150, 100), np.uint8), EmbeddingError, r"one grey image as \[image\]"),
        (np.zeros((4, 31)), EmbeddingError, "have 31 numbers each, and the encoder makes 32"),
        (np.zeros(31), EmbeddingError, "have 31 numbers each, and the encoder makes 32"),
        ([], EmbeddingError, "there are no images"),
        (3, EmbeddingError, "an int is neither images nor embeddings"),
        (None, EmbeddingError, "neither images nor embeddings"),
        ([[0.1, 0.2], [0.3]], EmbeddingError, "neither images nor rows of one length"),
        ([image(), 3], DataError, "image 1: an int is not a PIL image"),
        ("nowhere.jpg", ImageError, r"nowhere\.jpg: no such file"),
        (b"no image", ImageError, "0: "),
    ],
)
def test_what_cannot_be_is_an_error_that_says_what_to_write(classifier, given, error, message):
    with pytest.raises(error, match=message):
        classifier.predict(given)


def test_a_folder_is_no_image(classifier, tmp_path):
    with pytest.raises(ImageError, match="a folder, not an image"):
        classifier.predict(tmp_path)


def test_tensors_that_cannot_be(classifier):
    torch = pytest.importorskip("torch")
    with pytest.raises(DataError, match="before it was normalized"):
        classifier.predict(torch.randn(3, 8, 8) * 3)
    with pytest.raises(DataError, match=r"\(channels, height, width\)"):
        classifier.predict(torch.zeros(8, 8, 3, dtype=torch.uint8))


# --- answers ------------------------------------------------------------------------------------


def test_top_k_is_predict_proba_in_order(classifier):
    images = [image(), image("blue")]
    chances = classifier.predict_proba(images)
    for row, best in zip(chances, classifier.top_k(images, 2), strict=True):
        assert [chance for _, chance in best] == sorted(row.tolist(), reverse=True)[:2]
        assert best[0][0] == classifier.class_names[int(row.argmax())]
    assert len(classifier.top_k(image(), 99)[0]) == 3
    for k in (0, 1.5, True):
        with pytest.raises(SettingError, match="k is"):
            classifier.top_k(image(), k)


@pytest.mark.parametrize("encoders", ["fake:32-0", ["fake:32-0", "fake:16-1"]])
def test_what_is_less_probable_than_asked_for_is_none(encoders, tmp_path):
    ensemble().save(tmp_path / "ensemble.json")
    classifier = load(tmp_path, encoders, cache=False)
    images = [image(color) for color in ("red", "green", "grey", "white")]
    names, sure = classifier.predict(images), classifier.predict_proba(images).max(axis=1)
    least = float(np.sort(sure)[2])  # which two images do not have
    answers = classifier.predict(images, abstain=least)
    assert answers.dtype == object
    assert answers.tolist() == [
        name if chance >= least else None for name, chance in zip(names.tolist(), sure, strict=True)
    ]
    assert answers.tolist().count(None) == 2
    assert all(type(answer) is str for answer in answers if answer is not None)
    assert classifier.predict(images, abstain=0).tolist() == names.tolist()
    for wrong in (1.1, -0.1, float("nan"), "0.5", True):
        with pytest.raises(SettingError, match=r"abstain is .*: give a number from 0 to 1"):
            classifier.predict(images, abstain=wrong)


def test_the_decision_is_the_heads(classifier):
    rows = FakeEncoder().encode_images([image()])
    assert (classifier.decision_function(image()) == classifier.head.decision_function(rows)).all()


def test_text_only_sources_answer_for_embeddings(classifier):
    encoder = FakeEncoder()
    for source in (
        encoder.encode_texts,
        dict(zip(ensemble().texts(), encoder.encode_texts(ensemble().texts()), strict=True)),
    ):
        blind = PromptClassifier(ensemble(), source)
        assert blind.predict(encoder.encode_images([image()])).tolist() == ["fire"]
        assert blind.encoder is source
        with pytest.raises(DataError, match="no encoder to embed these"):
            blind.predict(image())


def test_what_is_no_encoder_is_refused():
    with pytest.raises(SettingError, match="encoder is 3"):
        PromptClassifier(ensemble(), 3)
    with pytest.raises(EncoderError, match="pass encoder='NAME'"):
        _ = PromptClassifier(ensemble()).encoder
    with pytest.raises(DataError, match="pass an encoder or its name"):
        PromptClassifier(ensemble()).predict(image())
    head = Head(("a", "b"), np.eye(2))
    with pytest.raises(LabelError, match="different classes"):
        PromptClassifier(ensemble(), "fake:32-0", head)


def test_nothing_is_loaded_to_read_the_names(monkeypatch):
    import promptboost.encoders.embedder as module

    monkeypatch.setattr(module, "load_encoder", lambda *_, **__: pytest.fail("loaded"))
    classifier = PromptClassifier(ensemble(), "fake:32-0")
    assert classifier.class_names == ("fire", "grass", "ice")
    text = "PromptClassifier(3 classes, 1 round, 4 sentences, encoder='fake:32-0')"
    assert repr(classifier) == text


def test_it_is_in_the_package():
    assert promptboost.load is load
    assert {"load", "PromptClassifier"} <= set(dir(promptboost))


# --- probabilities ------------------------------------------------------------------------------


def test_the_scale_of_the_text_is_that_of_every_face(tmp_path):
    text = ensemble(logit_scale=7.0, encoder_logit_scale=20.0)
    classifier = PromptClassifier(text, "fake:32-0", cache=False)
    rows = FakeEncoder().encode_images([image(), image("blue")])
    expected = classifier.head.predict_proba(rows, 7.0)
    assert (classifier.predict_proba(rows) == expected).all()
    classifier.save(tmp_path)
    file = Head.load(tmp_path / "head-fake-32-0.safetensors")
    assert file.logit_scale == 7.0
    assert (file.predict_proba(rows) == expected).all()
    assert (load(tmp_path, "fake:32-0").predict_proba(rows) == expected).all()
    assert (text.embed(FakeEncoder()).predict_proba(rows) == expected).all()


def test_a_text_without_a_scale_has_the_encoders_own():
    classifier = PromptClassifier(ensemble(), "fake:32-0", cache=False)
    assert classifier.head.logit_scale == FakeEncoder.logit_scale
    rows = dict(
        zip(ensemble().texts(), FakeEncoder().encode_texts(ensemble().texts()), strict=True)
    )
    assert ensemble().embed(rows).logit_scale is None


def test_on_another_encoder_the_ratio_to_its_own_scale_is_kept():
    louder = FakeEncoder(dim=16)
    louder.logit_scale = 60.0
    text = ensemble(logit_scale=50.0, encoder_logit_scale=20.0)
    assert PromptClassifier(text, louder, cache=False).head.logit_scale == 150.0
    unknown = replace(text, encoder_logit_scale=None)
    assert PromptClassifier(unknown, louder, cache=False).head.logit_scale == 50.0


# --- keeping and moving -------------------------------------------------------------------------


def test_what_is_saved_answers_the_same(classifier, tmp_path):
    classifier.save(tmp_path / "new" / "folder")
    files = {file.name for file in (tmp_path / "new" / "folder").iterdir()}
    assert files == {"ensemble.json", "head-fake-32-0.safetensors"}
    again = load(tmp_path / "new" / "folder", "fake:32-0", cache=False)
    assert (again.predict_proba(image()) == classifier.predict_proba(image())).all()
    assert again.ensemble == classifier.ensemble
    beside = load(tmp_path / "new" / "folder" / "ensemble.json", FakeEncoder(), cache=False)
    assert (beside.predict_proba(image()) == classifier.predict_proba(image())).all()


class Counting(FakeEncoder):
    """Remembers the texts it was asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def encode_texts(self, texts):
        self.asked.extend(texts)
        return super().encode_texts(texts)


def test_a_text_is_embedded_once(tmp_path):
    encoder = Counting()
    PromptClassifier(ensemble(), encoder).save(tmp_path)
    assert len(encoder.asked) == 4
    load(tmp_path, encoder).predict(image())
    assert len(encoder.asked) == 4
    renamed = ensemble().rename_class("ice", "sea")
    renamed.save(tmp_path / "ensemble.json")
    assert load(tmp_path, encoder).predict(image("blue")).tolist() == ["sea"]
    assert len(encoder.asked) == 4  # the sentences are the same
    load(tmp_path, encoder, cache=False).predict(image())
    assert len(encoder.asked) == 8


@pytest.mark.parametrize("cache", [True, False])
def test_a_forged_head_is_not_believed(tmp_path, cache, caplog):
    text = ensemble()
    honest = PromptClassifier(text, "fake:32-0", cache=cache)
    honest.save(tmp_path)
    assert load(tmp_path, "fake:32-0", cache=cache).predict(image("blue")).tolist() == ["ice"]
    assert not caplog.records
    path = tmp_path / "head-fake-32-0.safetensors"
    head = type(honest.head).load(path)
    changes = {
        "weights": {"weights": head.weights[..., ::-1, :].copy()},
        "a little": {"weights": head.weights * 1.001},
        "class names": {"class_names": ("fire", "grass", "gold")},
        "width": {"weights": head.weights[..., :-1]},
        "rows": {"weights": head.weights[..., :2, :], "class_names": ("fire", "grass")},
        "scale": {"logit_scale": 1e-6},
    }
    for what, change in changes.items():
        replace(head, **change).save(path)
        caplog.clear()
        again = load(tmp_path, "fake:32-0", cache=cache)
        expected = honest.predict_proba([image("blue"), image()])
        assert (again.predict_proba([image("blue"), image()]) == expected).all(), what
        assert again.predict(image("blue")).tolist() == ["ice"]
        told = [record for record in caplog.records if "not the head of its" in record.message]
        assert bool(told) == ("weights" in change), what
    for damage in (b"broken", b"", path.read_bytes()[:90]):
        path.write_bytes(damage)
        caplog.clear()
        assert load(tmp_path, "fake:32-0", cache=cache).predict(image("blue")).tolist() == ["ice"]
        assert "is not used; its head is computed" in caplog.text


def test_a_prompt_cannot_take_the_place_of_a_head(tmp_path):
    """A stranger's text holds any characters, and its prompts get into the same store."""
    encoder, target = FakeEncoder(), ensemble()
    fingerprint = target.fingerprint
    for form in (f"{fingerprint} 2", f"head\n{fingerprint}\n2"):
        banks = {**BANKS, "fire": {form: 1}}
        stranger = PromptEnsemble(tuple(BANKS), (Round("{}", banks, 0.0, 0.1),))
        PromptClassifier(stranger, encoder).predict(image())
    assert (PromptClassifier(target, encoder).head.weights == target.embed(encoder).weights).all()


def test_of_a_head_without_an_encoder_only_the_rows_are_taken(tmp_path):
    encoder = FakeEncoder()
    PromptClassifier(ensemble(), encoder.encode_texts).save(tmp_path)
    path = tmp_path / "head.safetensors"
    head = Head.load(path)
    replace(head, class_names=("a", "b", "c"), rounds=7, temperature=0.1).save(path)
    again = load(tmp_path)
    assert again.predict(encoder.encode_images([image("blue")])).tolist() == ["ice"]
    assert (again.head.rounds, again.head.temperature) == (1, 1.0)
    path.write_bytes(b"broken")
    with pytest.raises(EncoderError, match="names no encoder"):
        load(tmp_path).predict(encoder.encode_images([image()]))


def test_a_classifier_of_embeddings_is_kept_too(tmp_path):
    encoder = FakeEncoder()
    PromptClassifier(ensemble(), encoder.encode_texts).save(tmp_path)
    again = load(tmp_path)
    assert again.predict(encoder.encode_images([image("blue")])).tolist() == ["ice"]
    with pytest.raises(DataError, match="no encoder"):
        again.predict(image())


def test_transfer_leaves_the_first_as_it_is(classifier):
    other = classifier.transfer("fake:16-1")
    assert other.head.dim == 16
    assert classifier.head.dim == 32
    assert other.predict([image(), image("blue")]).tolist() == ["fire", "ice"]
    assert other.ensemble is classifier.ensemble


def test_what_was_moved_is_loaded_by_naming_its_encoder_again(tmp_path):
    first = PromptClassifier(replace(ensemble(), encoder_id="fake:32-0"), "fake:32-0")
    moved = first.transfer("fake:16-1")
    moved.save(tmp_path / "moved")
    again = load(tmp_path / "moved", encoder="fake:16-1")
    assert again.predict_proba([image()]).tolist() == moved.predict_proba([image()]).tolist()


def test_the_store_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "cache"))
    seen = []

    class Counting(FakeEncoder):
        def encode_images(self, images):
            images = list(images)
            seen.extend(images)
            return super().encode_images(images)

    for _ in range(2):
        PromptClassifier(ensemble(), Counting()).predict(image())
    assert len(seen) == 1
    PromptClassifier(ensemble(), Counting(), cache=False).predict(image())
    assert len(seen) == 2


def test_no_file(tmp_path):
    for place in (tmp_path, tmp_path / "none", tmp_path / "none.json"):
        with pytest.raises(InputError, match="no such file"):
            load(place)
        with pytest.raises(FileNotFoundError):
            load(place)


def test_a_store_that_cannot_be_written_is_done_without(classifier, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "file"))
    with pytest.warns(StoreWarning, match="Going on without the embedding store"):
        head = PromptClassifier(ensemble(), "fake:32-0").head
    np.testing.assert_array_equal(head.weights, classifier.head.weights)


def test_a_head_of_another_encoder_answers_for_no_image(classifier):
    other = PromptClassifier(classifier.ensemble, "fake:32-1", classifier.head, cache=False)
    with pytest.raises(EncoderError, match=r"made with the encoder 'fake:32-0', not 'fake:32-1'"):
        other.predict(image())


def test_a_residual_is_learned_on_every_encoder_of_an_average():
    both = PromptClassifier(ensemble(), ["fake:32-0", "fake:16-1"], cache=False)
    colors = {"fire": ["red", "tomato"], "ice": ["blue", "navy"], "grass": ["green", "lime"]}
    images = [image(color) for some in colors.values() for color in some]
    labels = [name for name, some in colors.items() for _ in some]
    with pytest.warns(NoPoolWarning, match="weighted like a plain template"):
        again = refit(both, images, labels, views=2)
    assert again.predict(images).tolist() == labels
    assert [head.residual is None for head in again.heads] == [False, False]
    assert both.head.residual is None

import json
import pickle
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import promptboost
from promptboost.boosting.scale import FACTORS
from promptboost.config import FitConfig
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import (
    DataError,
    EmbeddingError,
    EmbeddingLengthWarning,
    EncoderError,
    LabelError,
    PoolError,
    SettingError,
    WeightError,
)
from promptboost.estimator import ImageEmbedder, PromptBoostClassifier
from promptboost.model import Head, PromptEnsemble
from promptboost.pool import build_pool, save_pool
from promptboost.run.fit import fit_run
from promptboost.training import PoolTexts
from tests.synthetic import clip_like

# No check is expected to fail. scikit-learn itself skips that of array libraries other than numpy
# unless SCIPY_ARRAY_API is set.


@parametrize_with_checks(
    [
        PromptBoostClassifier(),
        PromptBoostClassifier(n_rounds=4, settings={"logit_scale": 20, "patience": 1}),
        PromptBoostClassifier(composer="greedy", n_rounds=50),
        PromptBoostClassifier(
            composer="greedy",
            n_rounds=5,
            settings={"max_copies": 1, "penalty": False, "patience": 1},
        ),
    ]
)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


both_composers = pytest.mark.parametrize("composer", ["gradient", "greedy"])


# --- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"settings": {"max_copies": 2}},
            "max_copies is 2, but only the greedy composer.*='greedy'",
        ),
        ({"settings": {"penalty": False}}, "penalty is False, but only the greedy composer has it"),
        (
            {"composer": "greedy", "settings": {"logit_scale": 20.0}},
            "logit_scale is 20.0, but only the gradient composer has it.*='gradient'",
        ),
        (
            {"composer": "greedy", "settings": {"spread": 1}},
            "spread is 1.0, but only the",
        ),
        ({"settings": {"rounds": 3}}, "which is the parameter n_rounds"),
        ({"settings": {"copy": 3}}, "there is no setting 'copy'; settings may have"),
        ({"settings": ["copies"]}, "settings is a list: give a mapping"),
        ({"composer": "random"}, "composer is 'random', but must be 'gradient' or 'greedy'"),
        (
            {"settings": {"logit_scale": "high"}},
            "logit_scale is 'high', but must be a number above 0",
        ),
        ({"settings": {"logit_scale": True}}, "logit_scale is True"),
        ({"settings": {"logit_scale": 0.0}}, "logit_scale is 0.0, but must be a number above 0"),
    ],
)
def test_parameters_that_a_composer_does_not_have(options, message):
    with pytest.raises(SettingError, match=message):
        PromptBoostClassifier(**options).fit(ROWS, LABELS)


# --- without an encoder: prototypes --------------------------------------------------------------


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return X, np.array(["setosa", "versicolor", "virginica"])[y]


@both_composers
def test_methods_agree(iris, composer):
    X, y = iris
    classifier = PromptBoostClassifier(composer=composer, n_rounds=7).fit(X, y)
    decision = classifier.decision_function(X)
    assert decision.shape == (150, 3)
    labels = classifier.predict(X)
    assert (labels == classifier.classes_[decision.argmax(axis=1)]).all()
    assert (labels == classifier.classes_[classifier.predict_proba(X).argmax(axis=1)]).all()
    assert classifier.score(X, y) == (labels == y).mean()
    assert np.allclose(decision.sum(axis=1), 0)


@both_composers
def test_stages_end_with_the_whole(iris, composer):
    X, y = iris
    classifier = PromptBoostClassifier(composer=composer, n_rounds=7).fit(X, y)
    decisions = list(classifier.staged_decision_function(X))
    labels, scores = list(classifier.staged_predict(X)), list(classifier.staged_score(X, y))
    assert len(decisions) == len(labels) == len(scores) == classifier.n_iter_
    assert (decisions[-1] == classifier.decision_function(X)).all()
    assert (labels[-1] == classifier.predict(X)).all()
    assert scores[-1] == classifier.score(X, y)
    weights = (y == "setosa").astype(float)
    assert list(classifier.staged_score(X, y, weights))[-1] == classifier.score(X, y, weights)
    shorter = clone(classifier).set_params(n_rounds=5).fit(X, y)  # one copy per round, too
    assert np.allclose(decisions[4], shorter.decision_function(X))


def test_one_round_has_one_stage(iris):
    X, y = iris
    classifier = PromptBoostClassifier().fit(X, y)
    assert classifier.n_iter_ == 1
    (decision,) = classifier.staged_decision_function(X)
    (labels,), (score,) = classifier.staged_predict(X), classifier.staged_score(X, y)
    assert (decision == classifier.decision_function(X)).all()
    assert (labels == classifier.predict(X)).all()
    assert score == classifier.score(X, y)


@both_composers
def test_two_classes_have_one_decision_in_proportion_to_the_log_odds(composer):
    X, y = make_blobs(60, centers=2, cluster_std=3.0, random_state=0)
    classifier = PromptBoostClassifier(composer=composer, n_rounds=4).fit(X, y)
    decision, probability = classifier.decision_function(X), classifier.predict_proba(X)
    assert decision.shape == (60,)
    factor = classifier.ensemble_.logit_scale / 4  # the mean of four rounds on the chosen scale
    assert np.allclose(decision * factor, np.log(probability[:, 1] / probability[:, 0]))
    assert ((decision > 0).astype(int) == classifier.predict(X)).all()


@both_composers
def test_prototypes_are_named_after_rows(iris, composer):
    X, y = iris
    classifier = PromptBoostClassifier(composer=composer, n_rounds=2).fit(X, y)
    for item in classifier.ensemble_.rounds:
        for name, bank in item.banks.items():
            examples = [text for text in bank if text != f"the average {name}"]
            assert all(y[int(text.removeprefix("example "))] == name for text in examples)
    assert len(classifier.ensemble_.texts()) > 3


@both_composers
def test_units_do_not_matter(iris, composer):
    X, y = iris
    plain = PromptBoostClassifier(composer=composer, n_rounds=5, random_state=0).fit(X, y)
    assert np.allclose(
        plain.decision_function(X),
        clone(plain).fit(X * 1000, y).decision_function(X * 1000),
        atol=1e-4,
    )


def noise(seed):
    """Rows without any sense: the search meets ties at every step."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(40, 3)), rng.integers(3, size=40), rng.permutation(40)


@both_composers
@pytest.mark.parametrize("seed", range(5))
def test_order_of_rows_does_not_matter(seed, composer):
    X, y, order = noise(seed)
    plain = PromptBoostClassifier(composer=composer, n_rounds=3).fit(X, y)
    shuffled = PromptBoostClassifier(composer=composer, n_rounds=3).fit(X[order], y[order])
    assert (plain.decision_function(X) == shuffled.decision_function(X)).all()
    assert (plain.sample_weight_[order] == shuffled.sample_weight_).all()
    assert plain.scale_choice_ == shuffled.scale_choice_


@both_composers
@pytest.mark.parametrize("seed", range(5))
def test_a_weight_of_two_is_an_example_given_twice(seed, composer):
    X, y, _ = noise(seed)
    times = np.random.default_rng(seed).integers(4, size=len(y))
    weighted = PromptBoostClassifier(composer=composer, n_rounds=3).fit(X, y, times)
    again = np.random.default_rng(seed).permutation(np.arange(len(y)).repeat(times))
    repeated = PromptBoostClassifier(composer=composer, n_rounds=3).fit(X[again], y[again])
    assert (weighted.decision_function(X) == repeated.decision_function(X)).all()
    assert (weighted.round_errors_ == repeated.round_errors_).all()
    assert weighted.scale_choice_ == repeated.scale_choice_
    # All copies of an example together weigh what the one weighs.
    together = np.bincount(again, repeated.sample_weight_, minlength=len(y))
    assert np.allclose(together, weighted.sample_weight_)


def test_equal_rows_are_told_apart_by_label_and_views():
    X, y = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), ["a", "a", "b", "b"]
    plain = PromptBoostClassifier().fit(X, y, [1, 3, 1, 1])
    assert set(plain.ensemble_.sample_weights) == {"0", "2", "3"}
    assert plain.sample_weight_[1] == pytest.approx(3 * plain.sample_weight_[0])
    assert plain.sample_weight_.sum() == pytest.approx(1)
    views = X[:, None].repeat(2, axis=1)
    seen = clone(plain).set_params(settings={"views_per_round": 2})
    assert set(seen.fit(X, y, views=views).ensemble_.sample_weights) == {"0", "2", "3"}
    views[1, 1] = [0.8, 0.6]
    assert set(seen.fit(X, y, views=views).ensemble_.sample_weights) == set("0123")


@both_composers
def test_start_weights_reach_boosting(composer):
    X, y, order = noise(0)
    weights = 1.0 + order
    weighted = PromptBoostClassifier(composer=composer, n_rounds=1).fit(X, y, weights)
    wrong = weighted.predict(X) != y
    shares = [weights[wrong & (y == label)].sum() / weights[y == label].sum() for label in set(y)]
    assert weighted.round_errors_[0] == pytest.approx(np.mean(shares))


@both_composers
def test_sample_weights_start_boosting_and_zero_leaves_out(iris, composer):
    X, y = iris
    classifier = PromptBoostClassifier(composer=composer, n_rounds=3)
    kept = np.random.default_rng(0).random(150) < 0.5
    weighted = clone(classifier).fit(X, y, kept.astype(float))
    assert (weighted.sample_weight_[~kept] == 0).all()
    assert (weighted.sample_weight_[kept] > 0).all()
    assert np.isclose(weighted.sample_weight_.sum(), 1)
    without = clone(classifier).fit(X[kept], y[kept])
    assert (weighted.decision_function(X) == without.decision_function(X)).all()
    plain = classifier.set_params(n_rounds=1).fit(X, y)
    hard = plain.predict(X) != y
    heavy = clone(classifier).fit(X, y, np.where(hard, 50.0, 1.0))
    assert hard.any()
    assert (heavy.predict(X)[hard] == y[hard]).mean() > 0.5


def test_hard_rows_gain_weight(iris):
    X, y = iris
    classifier = PromptBoostClassifier(n_rounds=10, settings={"temperature": 0.1}).fit(X, y)
    assert classifier.sample_weight_[y == "setosa"].mean() < classifier.sample_weight_.mean()


@pytest.mark.parametrize("options", [{}, {"composer": "greedy", "n_rounds": 10}])
def test_beats_chance_on_held_out_rows(iris, options):
    X, y = iris
    model = make_pipeline(StandardScaler(), PromptBoostClassifier(**options))
    assert cross_val_score(model, X, y, cv=3).mean() > 0.9


def test_grid_search_and_clone(iris):
    X, y = iris
    search = GridSearchCV(
        PromptBoostClassifier(n_rounds=3, random_state=0),
        {"composer": ["gradient", "greedy"], "settings": [None, {"patience": 1}]},
        cv=2,
    )
    search.fit(X, y)
    assert search.best_score_ > 0.8
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


def test_pickle_keeps_predictions(iris):
    X, y = iris
    classifier = PromptBoostClassifier(n_rounds=2).fit(X, y)
    again = pickle.loads(pickle.dumps(classifier))
    assert (again.decision_function(X) == classifier.decision_function(X)).all()


# --- on embeddings, with texts -------------------------------------------------------------------


class Task:
    """Embeddings that behave like a contrastive model's, and made-up words for the texts."""

    def __init__(self, seed=1):
        few, held_out = 6, 12
        made = clip_like(
            6, few + held_out, views=8, prompts=60, templates=5, dim=64, confusion=2.5, seed=seed
        )
        names = np.array([f"animal {k}" for k in range(6)])
        self.y = names[made.labels]
        self.X, self.views = made.images, made.views
        self.train = np.tile(np.arange(few + held_out) < few, 6)
        sentences = {name: [f"{name} text {j}" for j in range(60)] for name in names}
        self.templates = [f"kind {j} of {{}}" for j in range(5)]
        self.pool = build_pool(names.tolist(), templates=self.templates, descriptions=sentences)
        self.sentences = sentences
        self.vectors = {}
        for k, name in enumerate(names):
            filled = PoolTexts.of(self.pool).template_texts[k]
            self.vectors |= dict(zip(filled, made.templates[k], strict=True))
            self.vectors |= dict(zip(sentences[name], made.prompts[k], strict=True))
        accuracies = [
            (made.labels == (self.X @ made.templates[:, j].T).argmax(axis=1))[~self.train].mean()
            for j in range(5)
        ]
        self.zero_shot = float(np.mean(accuracies))

    def fit(self, **options):
        model = PromptBoostClassifier(self.vectors, self.pool, **{"random_state": 0, **options})
        return model.fit(self.X[self.train], self.y[self.train], views=self.views[self.train])


@pytest.fixture(scope="module")
def task():
    return Task()


PAPER = {"composer": "greedy", "n_rounds": 20, "settings": {"views_per_round": 4}}


@pytest.mark.parametrize("options", [{}, PAPER])
@pytest.mark.parametrize("residual", [False, True])
def test_better_than_zero_shot_on_held_out_images(options, residual):
    tasks = [Task(seed) for seed in (1, 2, 3)]
    models = [made.fit(**options, residual=residual) for made in tasks]
    scores = [
        model.score(made.X[~made.train], made.y[~made.train])
        for model, made in zip(models, tasks, strict=True)
    ]
    zero_shot = np.mean([made.zero_shot for made in tasks])
    assert zero_shot > 1 / 6
    assert np.mean(scores) > zero_shot + 0.03


def test_head_is_the_embedded_ensemble(task):
    classifier = task.fit(n_rounds=5)
    assert isinstance(classifier.head_, Head)
    head = classifier.ensemble_.embed(task.vectors)
    assert (classifier.head_.weights == head.weights).all()
    saved = classifier.head_
    head = replace(head, residual=saved.residual, text_scale=saved.text_scale)
    ours, theirs = classifier.decision_function(task.X), head.decision_function(task.X)
    assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    words = task.fit(n_rounds=5, residual=False)
    assert (words.head_.weights == head.weights).all()
    assert words.head_.residual is None
    assert classifier.classes_.tolist() == list(classifier.ensemble_.class_names)


@both_composers
def test_the_seed_decides(task, composer):
    def fit(state):
        settings = {"views_per_round": 4}
        return task.fit(composer=composer, n_rounds=3, settings=settings, random_state=state)

    fits = [fit(state).ensemble_ for state in (7, 7, 8)]
    assert fits[0].to_json() == fits[1].to_json()
    assert fits[0].rounds != fits[2].rounds
    assert fits[0].settings["seed"] == 7
    state = np.random.RandomState(0)
    seeds = [fit(state).ensemble_.settings["seed"] for _ in "ab"]
    assert seeds[0] != seeds[1]


def test_the_composer_makes_the_rounds(task):
    for composer in ("gradient", "greedy"):
        classifier = task.fit(composer=composer)
        assert [item.composer for item in classifier.ensemble_.rounds] == [composer]
        assert classifier.ensemble_.settings["composer"] == composer


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_beats_its_template_on_what_it_learns_from(seed):
    made = Task(seed)
    classifier = made.fit()
    (only,) = classifier.ensemble_.rounds
    X, y = made.X[made.train], made.y[made.train]
    assert only.error < only.template_error
    names = [only.template.format(name) for name in classifier.classes_]
    template = X @ np.stack([made.vectors[text] for text in names]).T
    assert classifier.score(X, y) > (classifier.classes_[template.argmax(axis=1)] == y).mean()


def test_attributes_say_what_happened(task):
    classifier = task.fit(n_rounds=4)
    rounds = classifier.ensemble_.rounds
    assert classifier.n_iter_ == len(rounds) == 4
    assert classifier.round_errors_.tolist() == [item.error for item in rounds]
    assert (classifier.round_errors_ <= [item.template_error for item in rounds]).all()
    assert classifier.n_features_in_ == 64
    assert list(classifier.ensemble_.sample_weights.values()) == pytest.approx(
        [classifier.sample_weight_[int(i)] for i in classifier.ensemble_.sample_weights]
    )


def test_patience_stops(task):
    patient = task.fit(
        composer="greedy", n_rounds=20, settings={"patience": 1, "views_per_round": 1}
    )
    quiet = patient.round_errors_ == 0
    assert not quiet[:-1].any()
    assert quiet[-1] or patient.n_iter_ == 20


def test_rows_need_not_be_of_length_one(task):
    plain = task.fit(n_rounds=2)
    scales = np.linspace(0.1, 9, len(task.X))[:, None]
    with pytest.warns(EmbeddingLengthWarning, match="lengths of some embeddings"):
        model = clone(plain).fit(
            (scales * task.X)[task.train],
            task.y[task.train],
            views=(scales[:, None] * task.views)[task.train],
        )
    assert model.ensemble_.rounds == plain.ensemble_.rounds
    with pytest.warns(EmbeddingLengthWarning):
        votes = model.decision_function(task.X * scales)
    assert np.allclose(votes, plain.decision_function(task.X))
    (expected,) = plain.explain(task.X[:1])
    with pytest.warns(EmbeddingLengthWarning):
        (explanation,) = model.explain(8 * task.X[:1])
    assert explanation.margin == pytest.approx(expected.margin)


def test_embeddings_of_zeros_are_refused(task):
    zeros, rows, labels = task.X.copy(), task.X[task.train], task.y[task.train]
    zeros[[2, 5]] = 0
    with pytest.raises(
        EmbeddingError, match=r"2 of \d+ embeddings are all zero, the first is row 2"
    ):
        task.fit(n_rounds=1).predict(zeros)
    model = clone(task.fit(n_rounds=1))
    with pytest.raises(EmbeddingError, match="embeddings are all zero, the first is row 0"):
        model.fit(np.zeros_like(rows), labels)
    views = task.views[task.train].copy()
    views[3, 1] = 0
    with pytest.raises(EmbeddingError, match="embeddings are all zero, the first is row 3"):
        model.fit(rows, labels, views=views)


def test_a_mapping_a_function_and_sentences_by_class_are_the_same(task):
    def encode(texts):
        # As the rows of a mapping are read: in single precision the last digits would differ.
        return np.stack([task.vectors[text] for text in texts]).astype(np.float64)

    rows, labels = task.X[task.train], task.y[task.train]
    fits = [
        PromptBoostClassifier(source, pool, templates=templates, n_rounds=2).fit(rows, labels)
        for source, pool, templates in (
            (task.vectors, task.pool, None),
            (encode, task.pool, None),
            (task.vectors, task.sentences, task.templates),
        )
    ]
    texts = [fitted.ensemble_.rounds for fitted in fits]
    assert texts[0] == texts[1] == texts[2]


def test_classes_without_sentences_are_named_in_a_warning(images):
    def fit(pool):
        model = PromptBoostClassifier("fake:48-0", pool, random_state=0)
        return model.fit(*images)

    with pytest.warns(UserWarning, match="no sentences for 'ice', 'moss', only") as caught:
        fit({"Fire": ["it is very red"], "moss": [], "iec": ["it is very blue"]})
    assert [warning.filename for warning in caught] == [__file__]
    # Warnings are errors here: nothing is said where no sentence was promised.
    for pool in ({}, None, SENTENCES, build_pool(list(SENTENCES), descriptions={"ice": ["blue"]})):
        fit(pool)


def test_a_pool_may_have_more_classes(task):
    some = task.train & (task.y != "animal 3")
    model = PromptBoostClassifier(task.vectors, task.pool, n_rounds=2)
    model.fit(task.X[some], task.y[some])
    assert "animal 3" not in model.ensemble_.class_names
    labels = task.y.copy()
    labels[0] = "animal 9"
    with pytest.raises(PoolError, match="no class 'animal 9'"):
        model.fit(task.X, labels)


# --- on images ---------------------------------------------------------------------------------

TEMPLATES = ["a photo of {}."]
SENTENCES = {"fire": ["it is very red"], "ice": ["it is very blue"], "moss": ["it is very green"]}
TONES = {"fire": (200, 20, 20), "ice": (20, 20, 200), "moss": (20, 200, 20)}


def image(name, rng):
    tone = np.clip(np.array(TONES[name]) + rng.normal(0, 12, 3), 0, 255)
    pixels = np.clip(tone + rng.normal(0, 15, (24, 24, 3)), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    y = np.array([name for name in TONES for _ in range(4)])
    return [image(name, rng) for name in y], y


@pytest.fixture(scope="module")
def fitted(images):
    model = PromptBoostClassifier(
        "fake:48-0",
        SENTENCES,
        templates=TEMPLATES,
        n_rounds=4,
        n_views=6,
        settings={"views_per_round": 4},
        random_state=0,
    )
    return model.fit(*images)


def test_images_of_all_kinds(fitted, images, tmp_path):
    X, y = images
    labels = fitted.predict(X)
    assert (labels == y).mean() > 0.9
    paths = []
    for number, image in enumerate(X):
        paths.append(tmp_path / f"{number}.png")
        image.save(paths[-1])
    assert (fitted.predict(paths) == labels).all()
    assert (fitted.predict([str(path) for path in paths]) == labels).all()
    assert (fitted.predict(np.array([str(path) for path in paths])) == labels).all()
    assert (fitted.predict([path.read_bytes() for path in paths]) == labels).all()
    assert (fitted.predict([np.asarray(image) for image in X]) == labels).all()
    assert (fitted.predict(np.stack([np.asarray(image) for image in X])) == labels).all()
    rows = FakeEncoder(48).encode_images(X)
    assert (fitted.decision_function(rows) == fitted.decision_function(X)).all()
    again = clone(fitted).fit([str(path) for path in paths], y)
    assert set(again.ensemble_.sample_weights) == {str(path) for path in paths}
    assert again.score(X, y) > 0.9


def test_fit_on_images_records_the_encoder_and_the_views(fitted, images):
    ensemble = fitted.ensemble_
    assert ensemble.encoder_id == fitted.head_.encoder_id == "fake:48-0"
    assert ensemble.encoder_fingerprint == FakeEncoder(48).fingerprint
    assert (ensemble.settings["views"], ensemble.settings["views_per_round"]) == (6, 4)
    assert fitted.n_features_in_ == 48
    still = clone(fitted).set_params(settings={"views_per_round": 0}).fit(*images)
    assert still.n_iter_ == 4
    assert still.ensemble_.settings["views"] == 6  # the residual is fitted on them
    words = clone(still).set_params(residual=False).fit(*images)
    assert words.ensemble_.settings["views"] == 0
    rows = FakeEncoder(48).encode_images(images[0])
    assert clone(still).fit(rows, images[1]).ensemble_.rounds == still.ensemble_.rounds


def test_the_logit_scale_is_chosen_around_the_encoders_own(fitted, images):
    X, y = images
    tried = [factor * FakeEncoder.logit_scale for factor in FACTORS]
    assert fitted.logit_scale_ in tried
    assert fitted.scale_choice_.startswith(f"logit scale {fitted.logit_scale_:g}, by the log loss")
    # Whatever the images are like, there is nothing to choose by if each class has one.
    first = [0, 4, 8]
    lonely = clone(fitted).fit([X[i] for i in first], y[first])
    assert lonely.logit_scale_ == tried[0]
    assert "only one image" in lonely.scale_choice_
    rows = FakeEncoder(48).encode_images(X)
    unknown = clone(fitted).set_params(encoder=FakeEncoder(48).encode_texts).fit(rows, y)
    assert "encoder's own scale was estimated" in unknown.scale_choice_


def test_a_logit_scale_that_is_given_is_used(fitted, images):
    given = clone(fitted).set_params(settings={"logit_scale": 7}).fit(*images)
    assert (given.logit_scale_, given.scale_choice_) == (7.0, None)
    assert given.ensemble_.settings["logit_scale"] == 7.0
    assert given.ensemble_.rounds != fitted.ensemble_.rounds
    greedy = clone(fitted).set_params(composer="greedy").fit(*images)
    assert (greedy.logit_scale_, greedy.scale_choice_) == (None, None)


def test_transfer_is_the_same_text_in_another_space(fitted, images):
    X, y = images
    other = FakeEncoder(dim=64, seed=5)
    moved = fitted.transfer(other)
    assert moved.ensemble_ is fitted.ensemble_
    assert (moved.logit_scale_, moved.scale_choice_) == (fitted.logit_scale_, fitted.scale_choice_)
    assert moved.head_.encoder_id == "fake:64-5"
    assert (moved.head_.weights == fitted.ensemble_.embed(other).weights).all()
    assert moved.n_features_in_ == 64
    assert fitted.encoder == "fake:48-0"
    assert list(moved.staged_score(X, y))[-1] == moved.score(X, y)


def test_a_transfer_back_restores_the_residual(fitted, images, caplog, tmp_path):
    X, _ = images
    assert fitted.head_.residual is not None
    moved = fitted.transfer("fake:64-5")
    assert moved.head_.residual is None
    assert "on 'fake:64-5' the text predicts alone" in caplog.text
    caplog.clear()
    for back in (fitted.transfer("fake:48-0"), moved.transfer("fake:32-1").transfer("fake:48-0")):
        assert (back.predict_proba(X) == fitted.predict_proba(X)).all()
    assert len(caplog.messages) == 1  # of fake:32-1
    moved.save(tmp_path)
    assert (PromptBoostClassifier.load(tmp_path).head_.matrix == fitted.head_.matrix).all()


def test_what_was_learned_holds_in_other_spaces(fitted, images):
    X, y = images
    learned, named = [], []
    for seed in range(1, 9):
        encoder = FakeEncoder(dim=64, seed=seed)
        learned.append(fitted.transfer(encoder).score(X, y))
        names = encoder.encode_texts([f"a photo of {name}." for name in fitted.classes_])
        winners = (encoder.encode_images(X) @ names.T).argmax(axis=1)
        named.append((fitted.classes_[winners] == y).mean())
    assert np.mean(learned) > np.mean(named) + 0.2


def test_images_in_cross_validation_and_search(images):
    X, y = images
    model = PromptBoostClassifier(
        "fake:48-0", SENTENCES, templates=TEMPLATES, n_rounds=2, random_state=0
    )
    assert cross_val_score(model, X, y, cv=2).mean() > 0.8
    search = GridSearchCV(
        model, {"settings": [{"views_per_round": n} for n in (0, 2, 8)]}, cv=2
    ).fit(X, y)
    assert search.best_estimator_.predict(X).shape == y.shape


@pytest.fixture
def folder(images, tmp_path):
    """The images as files: a folder for each class, and their paths in the order of the folders."""
    X, y = images
    paths = []
    for number, (image, name) in enumerate(zip(X, y, strict=True)):
        path = tmp_path / "images" / name / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        paths.append(str(path))
    (tmp_path / "sentences.json").write_text(json.dumps(SENTENCES))
    return tmp_path, paths, y


class CountingEncoder(FakeEncoder):
    """Counts what it embeds; copies count together, as a search makes some."""

    def __init__(self, dim=48, seed=0, counts=None):
        super().__init__(dim, seed)
        self.counts = Counter() if counts is None else counts

    def __deepcopy__(self, memo):
        return CountingEncoder(48, 0, self.counts)

    def encode_images(self, images):
        images = list(images)
        self.counts["images"] += len(images)
        return super().encode_images(images)

    def encode_texts(self, texts):
        self.counts.update(texts)
        return super().encode_texts(texts)


@pytest.mark.parametrize("own_place", [True, False])
def test_a_search_over_paths_embeds_each_image_and_text_once(folder, own_place):
    root, paths, y = folder
    encoder = CountingEncoder()
    cache = root / "store" if own_place else True
    model = PromptBoostClassifier(encoder, SENTENCES, cache=cache, random_state=0)
    search = GridSearchCV(model, {"composer": ["gradient", "greedy"], "n_rounds": [1, 2]}, cv=3)
    search.fit(paths, y)
    assert encoder.counts.pop("images") == 12 * (1 + 8) == 108
    assert set(encoder.counts.values()) == {1}
    assert (root / "store").exists() == own_place


def test_without_a_store_everything_is_embedded_again(folder):
    _, paths, y = folder
    encoder = CountingEncoder()
    model = PromptBoostClassifier(encoder, SENTENCES, cache=False, random_state=0)
    model.fit(paths, y).predict(paths)
    assert encoder.counts["images"] == 108 + 12


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"composer": "greedy", "rounds": 3, "views_per_round": 2, "seed": 5},
        {"spread": 0.5, "copies": 12, "caution": 0.0, "view_scale": 0.2, "views": 3},
        {"temperature": 0.5, "rounds": 3},
        {"views_per_round": 0, "concatenate": "one"},
    ],
)
@pytest.mark.parametrize("from_file", [True, False])
def test_the_command_line_learns_the_same_text(folder, settings, from_file):
    root, paths, y = folder
    prompts = str(root / "sentences.json")
    config = FitConfig(encoder="fake:48-0", shots=None, prompts=prompts, **settings)
    fit_run(str(root / "images"), root / "run", config)
    typed = PromptEnsemble.load(root / "run" / "ensemble.json")
    names = {"rounds": "n_rounds", "views": "n_views", "seed": "random_state"}
    parameters = {*names, "composer", "residual"}
    options = {names.get(k, k): v for k, v in {"seed": 0, **settings}.items() if k in parameters}
    others = {name: value for name, value in settings.items() if name not in parameters}
    model = PromptBoostClassifier(
        "fake:48-0", prompts if from_file else SENTENCES, settings=others, **options
    )
    learned = model.fit(paths, y).ensemble_
    assert learned.rounds == typed.rounds
    assert learned.class_names == typed.class_names
    told = {"pictures", "shots", "view_scale", "views"}
    assert {key: value for key, value in learned.settings.items() if key not in told} == {
        key: value for key, value in typed.settings.items() if key not in told
    }


def test_settings_of_the_composer_reach_it(images):
    def banks(**settings):
        model = PromptBoostClassifier("fake:48-0", SENTENCES, settings=settings, random_state=0)
        (only,) = model.fit(*images).ensemble_.rounds
        return [list(bank.values()) for bank in only.banks.values()]

    assert {sum(bank) for bank in banks(copies=5)} == {5}
    assert max(map(max, banks(spread=50))) < max(map(max, banks(spread=0)))


def test_labels_that_are_no_names_need_names(images):
    X, names = images
    labels = np.searchsorted(["fire", "ice", "moss"], names)
    model = PromptBoostClassifier("fake:48-0", SENTENCES, random_state=0)
    with pytest.raises(LabelError, match=r"such as 0, and prompts need names: set class_names=\{0"):
        model.fit(X, labels)
    with pytest.raises(LabelError, match="such as False"):
        model.fit(X, labels > 0)
    plain = clone(model).fit(X, names)
    for given in (["fire", "ice", "moss"], {0: "fire", 1: "ice", 2: "moss"}):
        named = clone(model).set_params(class_names=given).fit(X, labels)
        assert named.ensemble_.rounds == plain.ensemble_.rounds
        assert (
            named.predict(X).tolist() == np.searchsorted(plain.classes_, plain.predict(X)).tolist()
        )
    some = labels != 1
    two = clone(model).set_params(class_names=["fire", "ice", "moss"])
    two.fit([X[i] for i in np.flatnonzero(some)], labels[some])
    assert two.ensemble_.class_names == ("fire", "moss")
    wordnet = {"n1": "fire", "n2": "ice", "n3": "moss"}
    ids = np.array(["n1", "n2", "n3"])[labels]
    assert clone(model).set_params(class_names=wordnet).fit(X, ids).classes_.tolist() == list(
        wordnet
    )


@pytest.mark.parametrize(
    ("given", "labels", "message"),
    [
        (["fire"], [0, 0, 1, 1], "no name for the label 1"),
        ({0: "fire"}, [0, 0, 1, 1], "no name for the label 1"),
        (["fire", "ice"], [1, 1, 2, 2], "no name for the label 2"),
        (["fire", "ice"], ["a", "a", "b", "b"], "a mapping from label to name"),
        (["ice", "ice"], [0, 0, 1, 1], "'ice' is the name of two labels"),
        ([3, 4], [0, 0, 1, 1], "3 is not a string"),
    ],
)
def test_bad_class_names(images, given, labels, message):
    X, _ = images
    model = PromptBoostClassifier("fake:48-0", class_names=given)
    with pytest.raises(LabelError, match=message):
        model.fit(X[:4], labels)


def test_numbers_are_names_where_nothing_reads_them():
    assert PromptBoostClassifier().fit(ROWS, [3, 3, 5, 5]).ensemble_.class_names == ("3", "5")
    named = PromptBoostClassifier(class_names={3: "a", 5: "b"}).fit(ROWS, [3, 3, 5, 5])
    assert named.ensemble_.class_names == ("a", "b")
    assert named.predict(ROWS).tolist() == [3, 3, 5, 5]
    with pytest.raises(SettingError, match="class_names is 'ab'"):
        PromptBoostClassifier(class_names="ab").fit(ROWS, [0, 0, 1, 1])


def test_one_image_is_one_image(fitted, images, tmp_path):
    X, y = images
    X[0].save(tmp_path / "one.png")
    path = tmp_path / "one.png"
    for one in (X[0], np.asarray(X[0]), path, str(path), path.read_bytes()):
        assert fitted.predict(one).tolist() == fitted.predict([X[0]]).tolist()
        assert fitted.predict_proba(one).shape == (1, 3)
        with pytest.raises(DataError, match="X is one image, and fit takes several"):
            clone(fitted).fit(one, y)
    gray = np.asarray(X[0].convert("L"))
    with pytest.raises(DataError, match=r"for one grayscale image pass \[X\]"):
        fitted.predict(gray)
    assert fitted.predict([gray]).shape == (1,)
    for encoder in ("auto", None):
        with pytest.raises(DataError, match="the fit was on a numeric matrix: fit on images first"):
            PromptBoostClassifier(encoder).fit(ROWS, LABELS).predict(str(path))


def test_a_pool_may_be_a_file(folder):
    root, paths, y = folder
    model = PromptBoostClassifier("fake:48-0", root / "sentences.json", random_state=0)
    assert "it is very red" in model.fit(paths, y).ensemble_.texts()
    saved = root / "pool.jsonl"
    save_pool(build_pool(["fire", "ice", "moss"], descriptions=SENTENCES), saved)
    again = clone(model).set_params(pool=str(saved)).fit(paths, y)
    assert again.ensemble_.rounds == model.ensemble_.rounds
    with pytest.raises(SettingError, match="is a saved pool"):
        clone(again).set_params(templates=TEMPLATES).fit(paths, y)
    with pytest.raises(PoolError, match=r"nowhere\.json"):
        clone(model).set_params(pool="nowhere.json").fit(paths, y)
    with pytest.raises(SettingError, match="pool is a list: give a PromptPool, the path of a file"):
        clone(model).set_params(pool=["it is red"]).fit(paths, y)
    with pytest.raises(SettingError, match="templates is 'mine'"):
        clone(model).set_params(templates="mine").fit(paths, y)
    (root / "some.json").write_text(json.dumps({"fire": ["it is very red"]}))
    with pytest.warns(UserWarning, match="no sentences for 'ice', 'moss'"):
        clone(model).set_params(pool=root / "some.json").fit(paths, y)


def test_a_class_without_examples_is_predicted_by_its_sentences(folder):
    _, paths, y = folder
    model = PromptBoostClassifier("fake:48-0", SENTENCES, random_state=0)
    some = [i for i, label in enumerate(y) if label != "moss"]
    fitted = model.fit(
        [paths[i] for i in some], [y[i] for i in some], classes=["moss", "ice", "fire"]
    )
    assert fitted.classes_.tolist() == ["fire", "ice", "moss"]
    assert fitted.score(paths, y) > 0.8
    assert fitted.predict_proba(paths).shape == (len(paths), 3)
    with pytest.raises(LabelError, match="the label fire is not in classes: add it"):
        model.fit(paths, y, classes=["ice", "moss"])
    with pytest.raises(LabelError, match="labels are missing"):
        model.fit(paths, y, classes=["fire", "ice", "moss", None])
    with pytest.raises(SettingError, match="classes without examples need an encoder"):
        PromptBoostClassifier().fit(ROWS, LABELS, classes=[*LABELS, "new"])


def test_images_are_embedded_in_a_pipeline(folder):
    _, paths, y = folder
    encoder = CountingEncoder()
    model = make_pipeline(ImageEmbedder(encoder), LogisticRegression())
    assert cross_val_score(model, paths, y, cv=3).mean() > 0.8
    assert encoder.counts["images"] == 12
    step = ImageEmbedder("fake:48-0").fit(paths)
    rows = step.transform(paths)
    assert (rows == FakeEncoder(48).encode_images(Image.open(path) for path in paths)).all()
    assert step.get_feature_names_out().tolist() == [f"imageembedder{i}" for i in range(48)]
    assert step.transform(paths[0]).shape == (1, 48)
    boosted = make_pipeline(step, PromptBoostClassifier("fake:48-0", SENTENCES, random_state=0))
    assert boosted.fit(paths, y).score(paths, y) > 0.8
    with pytest.raises(DataError, match="X holds no images"):
        step.transform(rows)
    with pytest.raises(DataError, match="no encoder"):
        ImageEmbedder({"a": [1.0]}).fit(paths)
    assert promptboost.ImageEmbedder is ImageEmbedder


def test_an_ensemble_becomes_a_classifier(fitted, images, tmp_path):
    X, _ = images
    fitted.ensemble_.save(tmp_path / "ensemble.json")
    # An ensemble is text: it has no residual.
    text = PromptBoostClassifier.load(tmp_path)
    assert text.head_.residual is None
    for again in (
        PromptBoostClassifier.load(tmp_path, "fake:48-0"),
        PromptBoostClassifier.load(str(tmp_path / "ensemble.json")),
    ):
        assert again.encoder == "fake:48-0"
        assert (again.predict_proba(X) == text.predict_proba(X)).all()
        assert (again.n_iter_, again.n_features_in_) == (4, 48)
        assert again.logit_scale_ == fitted.logit_scale_
    other = PromptBoostClassifier.load(tmp_path, "fake:64-5", n_rounds=2)
    moved = fitted.transfer("fake:64-5")
    assert (other.decision_function(X) == moved.decision_function(X)).all()
    assert other.transfer("fake:48-0").predict(X).tolist() == text.predict(X).tolist()
    assert other.n_rounds == 2
    lost = PromptEnsemble(fitted.ensemble_.class_names, fitted.ensemble_.rounds)
    lost.save(tmp_path / "ensemble.json")
    with pytest.raises(SettingError, match="names no encoder: give one"):
        PromptBoostClassifier.load(tmp_path)


def test_pickle_of_a_named_encoder_is_small(fitted, images):
    again = pickle.loads(pickle.dumps(fitted))
    assert again.encoder == "fake:48-0"
    assert (again.predict(images[0]) == fitted.predict(images[0])).all()


def test_saved_text_is_the_classifier(fitted, images, tmp_path):
    fitted.ensemble_.save(tmp_path / "ensemble.json")
    head = PromptEnsemble.load(tmp_path / "ensemble.json").embed(FakeEncoder(48))
    rows = FakeEncoder(48).encode_images(images[0])
    assert (head.predict(rows) == fitted.predict(rows)).all()


def test_tags_are_honest():
    assert not PromptBoostClassifier(None).__sklearn_tags__().input_tags.string
    assert PromptBoostClassifier().__sklearn_tags__().input_tags.string
    assert PromptBoostClassifier("fake:48-0").__sklearn_tags__().input_tags.string


# --- what cannot be used -------------------------------------------------------------------------

ROWS, LABELS = np.eye(4), np.array(["a", "a", "b", "b"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_rounds": 0}, "n_rounds is 0, but must be 1 or more"),
        ({"n_rounds": 2.5}, "n_rounds is 2.5, but must be a whole number"),
        ({"n_rounds": True}, "n_rounds is True"),
        ({"n_views": -1}, "n_views is -1, but must be 0 or more"),
        ({"settings": {"views_per_round": -1}}, "views_per_round is -1, but must be 0 or more"),
        ({"settings": {"temperature": 0.0}}, "temperature is 0.0, but must be a number above 0"),
        ({"settings": {"temperature": "hot"}}, "temperature is 'hot'"),
        ({"composer": "real"}, "composer is 'real', but must be 'gradient' or 'greedy'"),
        (
            {"composer": "greedy", "settings": {"max_copies": 0}},
            "max_copies is 0, but must be 1 or more",
        ),
        ({"settings": {"patience": 0}}, "patience is 0, but must be 1 or more"),
        ({"settings": {"copies": 2**16}}, "copies is 65536, but must be at most 32768"),
        ({"settings": {"caution": -0.5}}, "caution is -0.5, but must be a number, 0 or more"),
        ({"encoder": 3}, "encoder is 3"),
        ({"random_state": -1}, "random_state is -1, but must be 0 or more"),
        ({"cache": 3}, "cache is 3: pass True, False, or the path of a folder"),
        ({"pool": {"a": ["b"]}}, "need an encoder"),
        ({"templates": ["a {}"]}, "need an encoder"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(SettingError, match=message):
        PromptBoostClassifier(**options).fit(ROWS, LABELS)


@pytest.mark.parametrize(
    ("X", "y", "weights", "error", "message"),
    [
        (ROWS, ["a"] * 4, None, LabelError, "one class only, 'a';"),
        (ROWS, LABELS, [1, 1, 0, 0], LabelError, "class 'b' have weight zero"),
        (ROWS, LABELS, [1, 1, -1, 1], WeightError, "weight 2 is negative"),
        (ROWS, LABELS, np.zeros(4), ValueError, "zero"),
        (ROWS, LABELS, [1, 1, np.nan, 1], ValueError, "NaN"),
        (ROWS, LABELS, [1e308] * 4, WeightError, "the sum of sample weights overflows"),
        (
            ROWS,
            [*LABELS[:3], None],
            None,
            LabelError,
            "1 of 4 labels are missing, the first at position 3",
        ),
        (ROWS, LABELS, [1, 1], ValueError, "shape"),
        (np.where(ROWS, np.nan, 1), LABELS, None, ValueError, "NaN"),
        (ROWS, LABELS[:3], None, ValueError, "inconsistent numbers of samples"),
        (ROWS, [0.1, 0.2, 0.3, 0.4], None, ValueError, "Unknown label type"),
        (ROWS, None, None, ValueError, "requires y"),
        (ROWS[0], LABELS, None, ValueError, "2D array"),
        (ROWS, ["a", "a", " ", ""], None, LabelError, "2 of 4 labels are missing, .* position 2"),
        (ROWS, [np.nan, "a", np.nan, "b"], None, LabelError, "2 of 4 .* position 0"),
        (ROWS, np.array([np.nan, "a", "a", "b"]), None, LabelError, "1 of 4 .* position 0"),
        (ROWS, [0.0, 1.0, np.nan, 1.0], None, LabelError, "position 2"),
        (ROWS, np.array([["a"], [None], ["b"], ["b"]], object), None, LabelError, "position 1"),
    ],
)
def test_bad_rows_labels_and_weights(X, y, weights, error, message):
    with pytest.raises(error, match=message):
        PromptBoostClassifier(n_rounds=2).fit(X, y, weights)


def test_a_table_with_gaps_is_told_from_images_and_labels():
    pandas = pytest.importorskip("pandas")
    images = [Image.new("RGB", (8, 8), color) for color in ("red", "tomato", "blue", "navy")]
    classifier = PromptBoostClassifier("fake:32-0", cache=False)
    for gap in (None, np.nan, pandas.NA, pandas.NaT, ""):
        with pytest.raises(LabelError, match="1 of 4 labels are missing, the first at position 1"):
            classifier.fit(images, pandas.Series(["fire", gap, "ice", "ice"], dtype=object))
    for dtype in ("string", "category"):
        with pytest.raises(LabelError, match="position 1"):
            classifier.fit(images, pandas.Series(["fire", None, "ice", "ice"], dtype=dtype))
    with pytest.raises(LabelError, match="position 1"):
        classifier.fit(images, pandas.Series([0, None, 1, 1], dtype="Int64"))
    frame = pandas.DataFrame({"path": ["a.png", "b.png"]})
    with pytest.raises(DataError, match=r"a\.png: no such file"):
        classifier.fit(frame, ["fire", "ice"])
    for table in (frame.to_numpy(), frame.to_numpy(dtype=str)):
        with pytest.raises(DataError, match="its column of paths"):
            classifier.fit(table, ["fire", "ice"])


def test_images_without_an_encoder_are_told_what_the_command_line_takes():
    images = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    with pytest.raises(DataError, match="'auto' for the default of the command line"):
        PromptBoostClassifier(None).fit(images, ["fire", "ice"])


def test_bad_views():
    classifier = PromptBoostClassifier(n_rounds=2, settings={"views_per_round": 1})
    with pytest.raises(EmbeddingError, match=r"expected shape \(4, V, 4\)"):
        classifier.fit(ROWS, LABELS, views=np.ones((4, 2, 3)))
    with pytest.raises(EmbeddingError, match="not finite"):
        classifier.fit(ROWS, LABELS, views=np.full((4, 2, 4), np.nan))
    with pytest.raises(SettingError, match="only 2 views"):
        PromptBoostClassifier(settings={"views_per_round": 3}).fit(
            ROWS, LABELS, views=np.ones((4, 2, 4))
        )
    assert classifier.fit(ROWS, LABELS, views=np.ones((4, 2, 4))).n_iter_ == 2


def test_bad_images(images, tmp_path):
    X, y = images
    with pytest.raises(DataError, match="no encoder"):
        PromptBoostClassifier(None).fit(X, y)
    with pytest.raises(DataError, match="no encoder"):
        PromptBoostClassifier({"a": [1.0]}).fit(X, y)
    model = PromptBoostClassifier("fake:48-0")
    with pytest.raises(DataError, match=r"nowhere\.png: no such file"):
        model.fit([str(tmp_path / "nowhere.png")] * 2, ["a", "b"])
    with pytest.raises(ValueError, match="inconsistent numbers"):
        model.fit(X, y[1:])
    with pytest.raises(SettingError, match="views go with embeddings"):
        model.fit(X, y, views=np.ones((12, 4, 48)))
    with pytest.raises(SettingError, match=r"is 8, .* set n_views to 8 or .* views_per_round to 3"):
        clone(model).set_params(n_views=3, settings={"views_per_round": 8}).fit(X, y)
    with pytest.raises(EncoderError, match="There is no encoder"):
        PromptBoostClassifier("no such").fit(X, y)


def test_embeddings_of_another_encoder_are_refused(fitted, task):
    with pytest.raises(EmbeddingError, match="images have 64 dimensions, prompts 48"):
        clone(fitted).set_params(pool=None).fit(task.X, task.y)
    with pytest.raises(ValueError, match="64 features"):
        fitted.predict(task.X)
    with pytest.raises(EmbeddingError, match="no row for"):
        PromptBoostClassifier({"a": [1.0]}).fit(task.X, task.y)


def test_an_encoder_exchanged_after_the_fit_is_noticed(fitted, images):
    changed = pickle.loads(pickle.dumps(fitted)).set_params(encoder="fake:48-1")
    with pytest.raises(EncoderError, match="use transfer"):
        changed.predict(images[0])


def test_what_cannot_be_transferred(fitted):
    with pytest.raises(NotFittedError):
        PromptBoostClassifier().transfer("fake:48-0")
    with pytest.raises(SettingError, match="prototypes"):
        PromptBoostClassifier(n_rounds=1).fit(ROWS, LABELS).transfer("fake:48-0")
    with pytest.raises(SettingError, match="encoder is None"):
        fitted.transfer(None)


def test_templates_belong_to_a_pool(task):
    with pytest.raises(SettingError, match="already has templates"):
        task.fit(templates=["a {}"])


def test_data_frames_keep_their_column_names(iris):
    pandas = pytest.importorskip("pandas")
    X, y = pandas.DataFrame(iris[0], columns=list("abcd")), iris[1]
    classifier = PromptBoostClassifier(n_rounds=2).fit(X, y)
    assert classifier.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(X.rename(columns={"a": "z"}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (classifier.predict(X) == classifier.predict(iris[0])).all()


def test_words_and_stages_do_not_import_scikit_learn():
    code = (
        "import sys, promptboost.training.examples, promptboost.model.head;"
        "sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_images_of_one_group_are_held_out_together():
    encoder = FakeEncoder()
    colors = [
        "red",
        "dark red",
        "pale red",
        "red fire",
        "blue",
        "dark blue",
        "pale blue",
        "blue ice",
    ]
    X, y = encoder.encode_texts(colors), ["warm"] * 4 + ["cold"] * 4
    model = PromptBoostClassifier(encoder=encoder, random_state=0)
    assert "4 folds" in str(model.fit(X, y).scale_choice_)
    alone = model.fit(X, y, groups=list(range(8)))
    assert "4 folds" in str(alone.scale_choice_)
    assert "2 folds" in str(model.fit(X, y, groups=list("aabbccdd")).scale_choice_)
    # One group per class leaves nothing to learn from.
    assert "no cross-validation" in str(model.fit(X, y, groups=y).scale_choice_)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y, groups=[1, 2])

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from promptboost.boosting import BoostSettings, GradientSettings, GridPool, Shots, boost
from promptboost.boosting.composition import scores_of
from promptboost.boosting.grid import from_grid
from promptboost.boosting.residual import fit_residual, unseen_texts
from promptboost.boosting.scale import (
    FACTORS,
    calibrated_scale,
    choose_scale,
    fold_class_rows,
    probability_scales,
)
from promptboost.data.memory import holds_images
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.group import join
from promptboost.errors import InputError, LabelError, PoolError, SettingError
from promptboost.model import PromptEnsemble
from promptboost.model.ensemble import EncoderRecord
from promptboost.model.head import staged_heads
from promptboost.pool import build_pool
from promptboost.training import PoolTexts
from promptboost.training.examples import RowSpace
from promptboost.training.trainer import fit_ensemble, settle_scale
from tests.progress_tools import Recorder
from tests.synthetic import clip_like

NAMES = ("ant", "bee", "cow", "dog", "eel")


class Problem:
    """A made-up task with made-up words for its rows."""

    def __init__(self, seed=2, confusion=2.5):
        task = clip_like(
            5, 4, views=8, prompts=30, templates=6, dim=32, confusion=confusion, seed=seed
        )
        self.shots = Shots.from_rows(task.images, task.labels, task.views)
        self.pool = GridPool.from_rows(task.templates, task.prompts)
        self.texts = PoolTexts(
            NAMES,
            tuple(f"template {j} of {{}}" for j in range(6)),
            tuple(tuple(f"template {j} of {name}" for j in range(6)) for name in NAMES),
            tuple(tuple(f"prompt {j} on {name}" for j in range(30)) for name in NAMES),
        )
        self.ids = [f"{i}.png" for i in range(20)]
        self.vectors = {
            text: row
            for said, rows in (
                (self.texts.template_texts, task.templates),
                (self.texts.prompt_texts, task.prompts),
            )
            for own, block in zip(said, rows, strict=True)
            for text, row in zip(own, block, strict=True)
        }

    def fit(self, rounds=6, texts=None, ids=None, shots=None, resume=None, on_round=None, **more):
        keys = ("weights", "encoders", "notes", "progress")
        other = {key: more.pop(key) for key in keys if key in more}
        ensemble, _ = fit_ensemble(
            shots or self.shots,
            self.pool,
            texts or self.texts,
            BoostSettings(rounds=rounds, **{"seed": 3, **more}),
            image_ids=ids or self.ids,
            resume=resume,
            on_round=on_round,
            **other,
        )
        return ensemble


@pytest.fixture(scope="module")
def problem():
    return Problem()


def test_the_text_says_what_was_chosen(problem):
    ensemble = problem.fit(rounds=3)
    rounds = list(boost(problem.shots, problem.pool, BoostSettings(rounds=3, seed=3)))
    assert any(done.composition.trace for done in rounds)
    for said, done in zip(ensemble.rounds, rounds, strict=True):
        weak = done.composition
        assert said.template == f"template {weak.template} of {{}}"
        assert (said.error, said.template_error) == (weak.error, weak.template_error)
        for k, name in enumerate(NAMES):
            expected = {f"template {weak.template} of {name}": 1}
            expected |= {f"prompt {j} on {name}": d for j, d in weak.banks[k].items()}
            assert said.banks[name] == expected
    weights = [ensemble.sample_weights[name] for name in problem.ids]
    assert weights == rounds[-1].state.weights.tolist()


def test_embedded_text_scores_as_the_rounds_do(problem):
    done = next(boost(problem.shots, problem.pool, BoostSettings(rounds=1, seed=3)))
    head = problem.fit(rounds=1).embed(problem.vectors)
    grid = scores_of(done.composition, problem.shots.originals, problem.pool)
    rows = (problem.shots.originals / 32767).astype(np.float32)
    assert np.allclose(head.scores(rows), grid, atol=1e-4)


def test_ensemble_records_what_the_fit_was(problem):
    ensemble = problem.fit(
        rounds=1, encoders=[EncoderRecord("e", "f")], notes={"scale": 0.5}, max_copies=2
    )
    assert ensemble.class_names == NAMES
    assert (ensemble.encoder_id, ensemble.encoder_fingerprint) == ("e", "f")
    assert ensemble.pool_fingerprint == problem.texts.fingerprint
    assert set(ensemble.versions) == {"promptboost", "numpy", "python"}
    expected = {"rounds": 1, "seed": 3, "max_copies": 2, "views": 8, "scale": 0.5}
    assert expected.items() <= ensemble.settings.items()
    assert ensemble.settings["start_weights"] == "uniform"
    with pytest.raises(SettingError, match="seed"):
        problem.fit(notes={"seed": 1})


def test_copies_of_one_text_are_added_up():
    problem = Problem()
    first = problem.texts.template_texts
    texts = PoolTexts(NAMES, problem.texts.templates, first, tuple((own[0],) * 30 for own in first))
    ensemble = problem.fit(rounds=2, texts=texts)
    plain = problem.fit(rounds=2)
    for said, other in zip(ensemble.rounds, plain.rounds, strict=True):
        for name in NAMES:
            assert sum(said.banks[name].values()) == sum(other.banks[name].values())
            assert len(said.banks[name]) <= 2
    assert any(max(bank.values()) > 1 for item in ensemble.rounds for bank in item.banks.values())


# --- continuing ------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize("views_per_round", [0, 3])
def test_an_interrupted_fit_ends_with_the_same_text(problem, stop, views_per_round):
    options = {"views_per_round": views_per_round}
    whole = problem.fit(**options)
    part = problem.fit(on_round=lambda so_far, done: len(so_far) == stop, **options)
    again = PromptEnsemble.from_json(part.to_json(sample_weights=True))
    assert problem.fit(resume=again, **options).to_json(sample_weights=True) == whole.to_json(
        sample_weights=True
    )
    shorter = problem.fit(rounds=stop, **options)
    assert problem.fit(resume=shorter, **options).to_json(sample_weights=True) == whole.to_json(
        sample_weights=True
    )


@examples(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([None, 1, 2]))
def test_continuing_with_start_weights_and_patience(seed, stop, patience):
    problem = Problem(seed=seed % 50, confusion=0.8)
    weights = np.random.default_rng(seed).random(20) + 0.01
    options = {"rounds": 5, "seed": seed, "weights": weights, "patience": patience}
    whole = problem.fit(**options)
    part = problem.fit(on_round=lambda so_far, done: len(so_far) == stop, **options)
    again = PromptEnsemble.from_json(part.to_json(sample_weights=True))
    resumed = problem.fit(resume=again, **options)
    assert resumed.to_json(sample_weights=True) == whole.to_json(sample_weights=True)


def test_every_round_reports_the_ensemble_so_far(problem):
    seen = []
    whole = problem.fit(rounds=3, on_round=lambda so_far, done: seen.append((so_far, done)))
    assert [len(so_far) for so_far, _ in seen] == [1, 2, 3]
    assert [done.state.rounds_done for _, done in seen] == [1, 2, 3]
    assert seen[-1][0] == whole
    assert seen[0][0].rounds == whole.rounds[:1]


def other_labels(problem):
    labels = problem.shots.labels[::-1].copy()
    return Shots(problem.shots.originals, labels, problem.shots.views)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, "'seed': 3 before, 4 now"),
        ({"views_per_round": 2}, "'views_per_round'"),
        ({"max_copies": 1}, "'max_copies'"),
        ({"penalty": False}, "'penalty'"),
        ({"temperature": 2.0}, "temperature"),
        (
            {"encoders": [EncoderRecord("other")]},
            r"the encoders: \[\] before, \[\('other', None\)\] now",
        ),
        ({"weights": np.arange(1, 21)}, "'start_weights'"),
        ({"notes": {"scale": 0.5}}, "'scale'"),
        ({"ids": [f"{i}.jpg" for i in range(20)]}, "'0.jpg', '0.png', '1.jpg' and 37 more"),
        ({"ids": [f"{i}.png" for i in reversed(range(20))]}, "'pictures'"),
        ({"shots": other_labels(Problem())}, "'pictures'"),
        ({"rounds": 1}, "2 rounds, more than 1"),
    ],
)
def test_another_fit_is_not_continued(problem, change, named):
    part = problem.fit(rounds=2)
    with pytest.raises(SettingError, match=f"cannot resume.*{named}"):
        problem.fit(resume=part, **change)


def test_another_pool_other_classes_or_edited_text_is_not_continued(problem):
    part = problem.fit(rounds=2)
    texts = problem.texts
    renamed = PoolTexts(
        ("cat", *NAMES[1:]), texts.templates, texts.template_texts, texts.prompt_texts
    )
    with pytest.raises(SettingError, match=r"the classes: .*'cat'"):
        problem.fit(resume=part, texts=renamed)
    prompts = (("another", *texts.prompt_texts[0][1:]), *texts.prompt_texts[1:])
    with pytest.raises(SettingError, match="pool's fingerprint"):
        problem.fit(
            resume=part,
            texts=PoolTexts(NAMES, texts.templates, texts.template_texts, prompts),
        )
    with pytest.raises(SettingError, match=r"edited.*truncated"):
        problem.fit(resume=part.truncate(1))


# --- the gradient composer and its scale --------------------------------------------------------


def named(scale):
    """An encoder with a logit scale of its own."""
    return [EncoderRecord("clip", encoder_logit_scale=scale)]


OPEN = {"gradient": GradientSettings(sweeps=8), "views_per_round": 3, "encoders": named(20.0)}


def test_an_open_scale_is_chosen_and_explained(problem):
    ensemble = problem.fit(rounds=1, **OPEN)
    choice = choose_scale(problem.shots, problem.pool, OPEN["gradient"], 20.0, views=3)
    assert ensemble.settings["logit_scale"] == choice.logit_scale
    assert ensemble.settings["scale_choice"] == str(choice)
    expected = {"composer": "gradient", "sweeps": 8, "copies": 8, "spread": 2.0, "caution": 0.3}
    assert expected.items() <= ensemble.settings.items()
    given = problem.fit(rounds=1, views_per_round=3, gradient=GradientSettings(33.0))
    assert given.settings["logit_scale"] == 33
    assert "scale_choice" not in given.settings
    assert "logit_scale" not in problem.fit(rounds=1).settings


def test_the_text_of_a_gradient_round_has_its_certificate(problem):
    asked = BoostSettings(rounds=1, seed=3, views_per_round=8, gradient=GradientSettings(30.0))
    trace = next(boost(problem.shots, problem.pool, asked)).composition.trace
    [said] = problem.fit(rounds=1, views_per_round=8, gradient=asked.gradient).rounds
    assert (said.composer, said.objective, said.gap) == (
        "gradient",
        trace.objectives[-1],
        trace.gaps[-1],
    )
    [greedy] = problem.fit(rounds=1).rounds
    assert (greedy.composer, greedy.objective, greedy.gap) == ("greedy", None, None)


@pytest.mark.parametrize("stop", [1, 2])
def test_an_interrupted_gradient_fit_keeps_its_scale(problem, stop):
    whole = problem.fit(rounds=3, **OPEN)
    part = problem.fit(rounds=3, on_round=lambda so_far, done: len(so_far) == stop, **OPEN)
    again = PromptEnsemble.from_json(part.to_json(sample_weights=True))
    assert problem.fit(rounds=3, resume=again, **OPEN).to_json(
        sample_weights=True
    ) == whole.to_json(sample_weights=True)
    # Whatever would be chosen now, the scale of the earlier rounds stays.
    other = problem.fit(rounds=3, resume=again, **OPEN | {"encoders": named(500.0)})
    assert other.to_json(sample_weights=True) == whole.to_json(sample_weights=True)
    chosen = float(whole.settings["logit_scale"])
    typed = OPEN | {"gradient": GradientSettings(chosen, sweeps=8)}
    assert problem.fit(rounds=3, resume=again, **typed).rounds == whole.rounds


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gradient": GradientSettings(7.0, sweeps=8)}, "'logit_scale': .* before, 7.0 now"),
        ({"gradient": GradientSettings(sweeps=9)}, "'sweeps': 8 before, 9 now"),
        ({"gradient": None}, "'composer': 'gradient' before, 'greedy' now"),
    ],
)
def test_another_gradient_fit_is_not_continued(problem, change, named):
    part = problem.fit(rounds=1, **OPEN)
    with pytest.raises(SettingError, match=f"cannot resume.*{named}"):
        problem.fit(rounds=2, resume=part, **OPEN | change)


def test_texts_of_folds_are_the_same_whether_composed_to_choose_the_scale_or_later(problem):
    shots, pool = problem.shots, problem.pool
    asked = BoostSettings(views_per_round=3, gradient=OPEN["gradient"])
    settled, _, _, folds = settle_scale(shots, pool, asked, 20.0)
    later = fold_class_rows(shots, pool, settled)
    assert np.array_equal(folds.fold, later.fold)
    assert np.array_equal(folds.rows, later.rows)
    text = pool.templates[:, 0] / np.float32(2**14)
    images, unseen = from_grid(shots.originals[:, None]), unseen_texts(pool)
    known, composed = (
        fit_residual(images, shots.labels, text, unseen, folds=texts) for texts in (folds, later)
    )
    assert np.array_equal(known.weights, composed.weights)
    assert known.losses == composed.losses
    assert settle_scale(shots, pool, settled, 20.0)[3] is None, (
        "nothing is chosen, so nothing is composed"
    )


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        (
            {**OPEN, "rounds": 1},
            ["cross-validating", "composing"],
        ),
        (
            {**OPEN, "rounds": 2},
            ["cross-validating", "composing round 1 of 2", "composing round 2 of 2"],
        ),
        (
            {"rounds": 1, "gradient": GradientSettings(logit_scale=40.0, sweeps=5, tolerance=0.9)},
            ["composing"],
        ),
        ({"rounds": 3}, ["composing"]),
    ],
)
def test_progress_reaches_the_total_of_each_stage_and_changes_nothing(problem, settings, stages):
    progress = Recorder()
    assert problem.fit(**settings, progress=progress) == problem.fit(**settings)
    progress.check(*stages)


def test_progress_of_a_residual_reaches_its_total(problem):
    gradient = replace(OPEN["gradient"], logit_scale=40.0)
    settings, progress = BoostSettings(views_per_round=3, gradient=gradient), Recorder()
    folds = fold_class_rows(problem.shots, problem.pool, settings, progress)
    progress.check("cross-validating")
    text = problem.pool.templates[:, 0] / np.float32(2**14)
    for texts in (folds, None):
        progress, images = Recorder(), from_grid(problem.shots.originals[:, None])
        unseen = unseen_texts(problem.pool)
        fit_residual(images, problem.shots.labels, text, unseen, folds=texts, progress=progress)
        progress.check("fitting the residual")


def test_images_that_were_never_set_aside_have_no_say_in_the_scale_of_probabilities(problem):
    shots, pool = problem.shots, problem.pool
    asked = BoostSettings(views_per_round=3, gradient=OPEN["gradient"])
    settled, _, held_out, _ = settle_scale(shots, pool, asked, 20.0)
    some = np.arange(len(shots.labels)) % 2 == 0
    known = np.where(some[:, None], held_out, np.nan)
    fewer = Shots(np.ascontiguousarray(shots.originals[some]), shots.labels[some])
    assert probability_scales(shots, pool, settled, [20.0], known) == probability_scales(
        fewer, pool, settled, [20.0], held_out[some]
    )


def test_greedy_settings_and_given_scales_are_left_alone(problem):
    for asked in (BoostSettings(), BoostSettings(gradient=GradientSettings(9.0))):
        assert settle_scale(problem.shots, problem.pool, asked, 20.0) == (
            asked,
            None,
            None,
            None,
        )


def test_without_an_encoder_the_images_give_the_scale(problem):
    asked = BoostSettings(views_per_round=0, gradient=GradientSettings(sweeps=4))
    settled, why, _, _ = settle_scale(problem.shots, problem.pool, asked, None)
    stand_in = calibrated_scale(problem.shots, problem.pool)
    chosen, plain, _, _ = settle_scale(problem.shots, problem.pool, asked, stand_in)
    assert settled == chosen
    assert why.startswith(plain)
    assert f"estimated as {stand_in:.3g}" in why


def test_the_calibrated_scale_is_about_the_best_template_and_grows_as_scores_shrink():
    # Class 0 is picked rightly three times of four by the second template only: log-odds of 3.
    rows = np.array([[0.6, 0.8, 0.0], [0.8, 0.6, 0.0]])
    near, far = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])
    shots = Shots.from_rows(rows[[1, 1, 1, 0, 0, 0, 0, 1]], [0, 0, 0, 0, 1, 1, 1, 1])
    pool = GridPool.from_rows([[far, near], [near, far]], [[near], [far]])
    assert calibrated_scale(shots, pool) == pytest.approx(np.log(3) / 0.2, rel=0.15)
    # The same with scores that lie half as far apart.
    blunt = np.array([[1.0, 0.0, 0.0], [0.5, np.sqrt(0.75), 0.0]])
    closer = GridPool.from_rows([[far, near], [near, blunt[1]]], [[near], [far]])
    assert calibrated_scale(shots, closer) != calibrated_scale(shots, pool)


def test_a_template_that_is_always_right_does_not_run_off_to_the_highest_scale():
    rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    pool = GridPool.from_rows(rows[:, None], [rows[:1], rows[1:]])
    assert 5 < calibrated_scale(Shots.from_rows(rows, [0, 1]), pool) < 10


# --- what does not belong together --------------------------------------------------------------


def test_image_ids_must_be_unique_and_as_many_as_images(problem):
    with pytest.raises(LabelError, match="19 unique image ids for 20"):
        problem.fit(ids=problem.ids[1:])
    with pytest.raises(LabelError, match="19 unique image ids for 20"):
        problem.fit(ids=["1.png", *problem.ids[1:]])


# --- texts, spaces, stages ----------------------------------------------------------------------


def test_texts_of_a_pool_have_its_fingerprint_and_its_rows():
    pool = build_pool(["owl", "bat"], descriptions={"owl": ["round eyes"]})
    texts = PoolTexts.of(pool)
    assert texts.fingerprint == pool.fingerprint
    grid = texts.embed(FakeEncoder().encode_texts)
    assert grid.templates.shape == (2, 16, 32)
    assert [len(rows) for rows in grid.prompts] == [17, 16]
    assert (grid.templates[1] == grid.prompts[1]).all()
    swapped = PoolTexts.of(pool, ["bat", "owl"])
    assert swapped.prompt_texts == texts.prompt_texts[::-1]
    assert swapped.fingerprint != texts.fingerprint
    with pytest.raises(PoolError, match="no class 'cow'"):
        PoolTexts.of(pool, ["cow"])
    bare = build_pool(["owl", "bat"], templates=[], descriptions={"owl": ["a"], "bat": ["b"]})
    with pytest.raises(PoolError, match="no templates"):
        PoolTexts.of(bare)


def test_each_text_of_a_class_is_embedded_once():
    asked = []

    def encode(texts):
        asked.append(texts)
        return FakeEncoder().encode_texts(texts)

    PoolTexts.of(build_pool(["owl", "bat"], templates=["a {}", "the {}"])).embed(encode)
    assert asked == [["an owl", "the owl"], ["a bat", "the bat"]]


@given(
    arrays(np.float64, (4, 3), elements=st.floats(-1e100, 1e100)),
    st.sampled_from([1e-30, 0.5, 3.0, 1e30]),
)
def test_spaces_give_unit_rows_whatever_the_numbers(rows, factor):
    weights = np.ones(4)
    space = RowSpace.around(rows, weights)
    unit = space.unit(rows)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1)
    if np.abs(rows[rows != 0]).min(initial=1) > 1e-100:
        scaled = RowSpace.around(rows * factor, weights).unit(rows * factor)
        assert np.allclose(unit, scaled, atol=1e-9)
    plain = RowSpace().unit(rows)
    assert np.allclose(np.linalg.norm(plain, axis=1), rows.any(axis=1))


def test_stages_are_the_truncated_ensembles(problem):
    ensemble = problem.fit(rounds=4)
    rows = (problem.shots.originals / 32767).astype(np.float32)
    stages = list(staged_heads(ensemble, problem.vectors, ensemble.embed(problem.vectors)))
    for number, stage in enumerate(stages, start=1):
        head = ensemble.truncate(number).embed(problem.vectors)
        assert np.allclose(stage.decision_function(rows), head.decision_function(rows), atol=1e-4)
        assert np.allclose(stage.predict_proba(rows), head.predict_proba(rows), atol=1e-5)


@pytest.mark.parametrize("X", [[], np.zeros((2, 3)), [[1, 2]], [1, 2], np.array([1.0])])
def test_what_are_no_images(X):
    assert not holds_images(X)


@pytest.mark.parametrize(
    "X",
    ["a.jpg", ["a.jpg"], np.array(["a.jpg"]), [b"..."], np.zeros((2, 3, 3)), [np.zeros((4, 4, 3))]],
)
def test_what_are_images(X):
    assert holds_images(X)


def test_errors_are_value_errors(problem):
    with pytest.raises(ValueError, match="cannot resume"):
        problem.fit(resume=problem.fit(rounds=1), seed=9)
    assert issubclass(SettingError, InputError)


# --- several encoders ------------------------------------------------------------------------------


class Several(Problem):
    """The same task as seen by two encoders, the second of which is easier."""

    def __init__(self):
        super().__init__()
        other = Problem(seed=5, confusion=1.5)
        self.alone = self.shots, self.pool
        pools = [self.pool, other.pool]
        prompts = zip(*(pool.prompts for pool in pools), strict=True)
        self.pool = GridPool.from_rows(
            join([pool.templates for pool in pools]), list(map(join, prompts)), (1.0, 1.0)
        )
        self.shots = Shots.from_rows(
            join([self.shots.originals, other.shots.originals]),
            self.shots.labels,
            join([self.shots.views, other.shots.views]),
            encoders=2,
        )

    def learn(self, own=(20.0, 5.0), second="second", settings=None, **more):
        ensemble, _ = fit_ensemble(
            self.shots,
            self.pool,
            self.texts,
            settings or BoostSettings(rounds=1, gradient=GradientSettings(sweeps=6)),
            image_ids=self.ids,
            encoders=[
                EncoderRecord("first", encoder_logit_scale=own[0]),
                EncoderRecord(second, "print", encoder_logit_scale=own[1]),
            ],
            **more,
        )
        return ensemble


@pytest.fixture(scope="module")
def several():
    return Several()


def test_each_of_several_encoders_has_a_scale_of_its_own(several):
    ensemble = several.learn()
    first, second = ensemble.encoders
    assert (first.id, second.id) == ("first", "second")
    assert (first.encoder_logit_scale, second.encoder_logit_scale) == (20.0, 5.0)
    # One factor for both: the composer's scale is a multiple of the first one's own.
    assert ensemble.settings["logit_scale"] / 20.0 in FACTORS
    # Each by the scores of its own rows, when they were set aside.
    pool = replace(several.pool, scales=(1.0, 0.25))
    asked = GradientSettings(sweeps=6)
    choice = choose_scale(several.shots, pool, asked, 20.0, views=4)
    settings = BoostSettings(rounds=1, gradient=asked)
    expected = probability_scales(several.shots, pool, settings, (20.0, 5.0), choice.held_out)
    assert [first.logit_scale, second.logit_scale] == expected
    assert expected[0] != expected[1]


def test_the_scale_of_an_encoder_matters_by_its_ratio(several):
    settings = BoostSettings(rounds=1, gradient=GradientSettings(logit_scale=60.0, sweeps=6))
    plain = several.learn(settings=settings)
    assert several.learn((40.0, 10.0), settings=settings).rounds == plain.rounds
    assert several.learn((20.0, 20.0), settings=settings).rounds != plain.rounds
    # The search compares cosines of one row with each other: no scale matters to it.
    greedy = BoostSettings(rounds=2)
    assert (
        several.learn(settings=greedy).rounds == several.learn((20.0, 20.0), settings=greedy).rounds
    )


def test_an_encoder_that_does_not_say_its_scale_is_looked_at(several):
    settings = BoostSettings(rounds=1, gradient=GradientSettings(logit_scale=60.0, sweeps=6))
    own = [
        calibrated_scale(several.shots, replace(several.pool, scales=(1.0, 1.0)), number)
        for number in (0, 1)
    ]
    assert own[0] == calibrated_scale(*several.alone)
    known = several.learn(tuple(own), settings=settings)
    assert several.learn((None, None), settings=settings).rounds == known.rounds


def test_a_fit_on_several_goes_on_to_the_same_text(several):
    settings = BoostSettings(rounds=4, views_per_round=2)
    stages = []
    whole = several.learn(settings=settings, on_round=lambda so_far, _: stages.append(so_far))
    for stage in stages[:-1]:
        saved = PromptEnsemble.from_json(stage.to_json(sample_weights=True))
        again = several.learn(settings=settings, resume=saved)
        assert again.to_json(sample_weights=True) == whole.to_json(sample_weights=True)
    with pytest.raises(SettingError, match=r"the encoders: .*'second'.* before, .*'third'.* now"):
        several.learn(settings=settings, resume=stages[0], second="third")

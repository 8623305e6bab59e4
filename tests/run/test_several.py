"""A fit on several encoders, from the command line and in Python, and what answers with its text."""

import json
import tomllib

import numpy as np
import pytest
from PIL import Image

from promptboost import PromptBoostClassifier, PromptClassifier, load
from promptboost.config import FitConfig
from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError, RunError, SettingError
from promptboost.model import Head, PromptEnsemble
from promptboost.run.fit import fit_run
from promptboost.run.results import AVERAGED
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import transfer_run
from tests.cli.cli_tools import FIT, call
from tests.run.run_tools import SENTENCES, interrupted, request, unfinish

A, B = "fake:32-0", "fake:16-1"  # of different width, with different rows


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A run that was learned on two encoders."""
    from tests.run.run_tools import write_images, write_sentences

    root = tmp_path_factory.mktemp("both")
    write_images(root / "images")
    write_sentences(root / "sentences.json")
    fit_run(**request(root, encoder=[A, B]))
    return root


def test_the_text_names_both_encoders(both):
    ensemble = PromptEnsemble.load(both / "run/ensemble.json")
    assert [item.id for item in ensemble.encoders] == [A, B]
    embedders = [Embedder.open(name, cache=False) for name in (A, B)]
    for item, embedder in zip(ensemble.encoders, embedders, strict=True):
        assert item.fingerprint == embedder.fingerprint
        assert item.encoder_logit_scale == embedder.logit_scale
        assert item.logit_scale > 0
        assert ensemble.logit_scale_on(embedder) == item.logit_scale
    record = json.loads((both / "run/ensemble.json").read_text())
    assert record["schema_version"] == 2
    assert record["encoder_id"] == A  # where it is for one encoder
    assert PromptEnsemble.from_json(ensemble.to_json()) == ensemble


def test_there_is_a_head_and_a_figure_for_each(both):
    run = RunFolder(both / "run")
    results = run.results
    heads = [Head.load(run.head_path(name)) for name in (A, B)]
    assert [head.dim for head in heads] == [32, 16]
    (other,) = results.transfers
    assert (other.encoder, other.learned_on) == (B, True)
    task = {path.stem: path for path in (both / "images").rglob("*.png")}
    assert task
    classifier = load(both / "run", B, cache=False)
    rows = (both / "run/predictions.csv").read_text().splitlines()[1:]
    right = [
        classifier.predict([both / "images" / row.split(",")[0]])[0] == row.split(",")[1]
        for row in rows
    ]
    assert other.accuracy["promptboost"] == np.mean(right)
    averaged = load(both / "run", [A, B], cache=False)
    right = [
        averaged.predict([both / "images" / row.split(",")[0]])[0] == row.split(",")[1]
        for row in rows
    ]
    assert results.method(AVERAGED).accuracy == np.mean(right)
    assert "also fitted on" in (both / "run/report.html").read_text()
    assert "also fitted on" in (both / "run/README.md").read_text()


def test_each_encoder_has_a_residual_of_its_own(both):
    heads = [Head.load(RunFolder(both / "run").head_path(name)) for name in (A, B)]
    assert [head.residual.shape[1] for head in heads] == [32, 16]
    files, _ = images_of(both)
    for name in (A, B):
        answers = [
            load(both / "run", name, cache=False, text_only=alone).predict_proba(files)
            for alone in (False, True)
        ]
        assert np.abs(answers[0] - answers[1]).max() > 0.01


def test_it_is_learned_on_both(both, tmp_path):
    """The text is neither that of the first alone nor that of the second."""
    texts = {
        name: fit_run(**request(both, f"run-{name[5:7]}", encoder=name)).ensemble_fingerprint
        for name in (A, B)
    }
    first = {
        name: PromptEnsemble.load(both / f"run-{name[5:7]}/ensemble.json").rounds for name in (A, B)
    }
    together = PromptEnsemble.load(both / "run/ensemble.json").rounds
    assert together not in (first[A], first[B])
    assert len(set(texts.values())) == 2


@pytest.mark.parametrize("composer", ["greedy", "gradient"])
@pytest.mark.parametrize("stop", [1, 3])
def test_an_interrupted_fit_goes_on_to_the_same_text(task, composer, stop):
    asked = {"encoder": [A, B], "composer": composer, "cache": False}
    fit_run(**request(task, **asked))
    run = RunFolder(task / "run")
    whole = run.ensemble_path.read_bytes()
    ensemble = PromptEnsemble.load(run.ensemble_path)
    with interrupted(stop):
        fit_run(**request(task, overwrite=True, **asked))
    assert len(PromptEnsemble.load(run.unfinished.partial_path)) == stop
    fit_run(**request(task, resume=True, **asked))
    assert run.ensemble_path.read_bytes() == whole
    assert len(ensemble) == 5


def test_other_encoders_do_not_go_on(both, tmp_path):
    run = RunFolder(both / "run")
    try:
        unfinish(run)
        with pytest.raises(RunError, match=r"encoder is \['fake:32-0', 'fake:16-2'\], but the run"):
            fit_run(**request(both, encoder=[A, "fake:16-2"], resume=True))
    finally:
        run.partial_path.unlink()


def test_a_transfer_to_one_of_them_says_so(both):
    transfer_run(both / "run", B)
    transfer_run(both / "run", "fake:8-3")
    moved = RunFolder(both / "run").results.transfers
    assert [(item.encoder, item.learned_on) for item in moved] == [(B, True), ("fake:8-3", False)]


# --- the command line ------------------------------------------------------------------------------


def test_the_command_line(capsys, task):
    answer = call(
        capsys, "fit", task / "images", "-o", task / "run", *FIT, "--encoder", B, "--json"
    )
    assert answer.code == 0, answer.err
    assert [item["encoder"] for item in answer.json["transfers"]] == [B]
    assert answer.json["transfers"][0]["learned_on"] is True
    settings = tomllib.loads((task / "run/run.toml").read_text())["fit"]
    assert settings["encoder"] == [A, B]
    assert f"fitted on {A} and {B}" in call(capsys, "show", task / "run").out

    image = task / "images/sea/0.png"

    def chances(*options):
        answer = call(capsys, "predict", task / "run", image, "--json", "--top-k", 4, *options)
        assert answer.code == 0, answer.err
        top = answer.json["predictions"][0]["top"]
        return np.array([item["probability"] for item in sorted(top, key=lambda i: i["class"])])

    first, second = chances("--encoder", A), chances("--encoder", B)
    np.testing.assert_allclose(chances(), first)  # the first, unless another is asked for
    assert np.abs(first - second).max() > 0.01
    np.testing.assert_allclose(chances("--average"), (first + second) / 2)
    np.testing.assert_allclose(chances("--encoder", A, "--encoder", B), (first + second) / 2)
    refused = call(capsys, "predict", task / "run", image, "--average", "--encoder", A)
    assert refused.code == 2
    assert "remove --encoder" in refused.err


def test_an_evaluation_sees_with_one_or_with_all(capsys, both):
    files, labels = images_of(both)

    def measured(*options):
        arguments = ["evaluate", both / "run", both / "images", "--json", *options]
        answer = call(capsys, *arguments)
        assert answer.code == 0, answer.err
        return answer.json["encoder"], answer.json["methods"][-1]["accuracy"]

    def right(*names, **options):
        classifier = load(both / "run", list(names), cache=False, **options)
        return np.mean(classifier.predict(files) == np.array(labels))

    assert measured() == (A, right(A))
    assert measured("--average") == (f"{A} + {B}", right(A, B))
    assert measured("--encoder", B, "--encoder", A) == (f"{B} + {A}", right(B, A))
    assert measured("--average", "--text-only")[1] == right(A, B, text_only=True)
    refused = call(capsys, "evaluate", both / "run", both / "images", "--average", "--encoder", A)
    assert refused.code == 2
    assert "remove --encoder" in refused.err


def test_a_summary_for_people(capsys, task):
    answer = call(capsys, "fit", task / "images", "-o", task / "run", *FIT, "--encoder", B)
    assert "also fitted on" in answer.out
    assert f"above: on {A}" in answer.out
    assert "average of 2 encoders" in answer.out


def test_the_average_of_one_is_that_one(capsys, fitted):
    image = fitted / "images/sea/0.png"
    alone = call(capsys, "predict", fitted / "run", image, "--json").json
    assert call(capsys, "predict", fitted / "run", image, "--json", "--average").json == alone


def test_settings_in_a_file(capsys, task):
    (task / "fit.toml").write_text(f'encoder = ["{A}", "{B}"]\nshots = 4\n')
    arguments = ["fit", task / "images", "-o", task / "run", "--config", task / "fit.toml"]
    assert call(capsys, *arguments).code == 0
    assert FitConfig(encoder=[A, B]) == FitConfig(encoder=(A, B))
    assert FitConfig(encoder=[A]) == FitConfig(encoder=A)
    assert RunFolder(task / "run").settings.encoders == (A, B)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ([], "encoder is an empty list"),
        ([A, A], "encoder names one twice"),
        ([A, 3], "encoder is 3, but must be a text"),
        (3, "encoder is 3, but must be a text"),
    ],
)
def test_bad_lists(encoder, message):
    with pytest.raises(SettingError, match=message):
        FitConfig(encoder=encoder)


# --- Python ----------------------------------------------------------------------------------------


def images_of(root):
    files = sorted((root / "images").rglob("*.png"))
    return files, [file.parent.name for file in files]


def test_the_estimator_learns_what_the_command_line_does(both):
    ensemble = PromptEnsemble.load(both / "run/ensemble.json")
    results = RunFolder(both / "run").results
    held_out = {
        row.split(",")[0] for row in (both / "run/predictions.csv").read_text().splitlines()[1:]
    }
    files, labels = images_of(both)
    learned = [
        (file, label)
        for file, label in zip(files, labels, strict=True)
        if str(file.relative_to(both / "images")) not in held_out
    ]
    assert len(learned) == results.task.learn_images
    estimator = PromptBoostClassifier(
        [A, B],
        SENTENCES,
        n_rounds=5,
        n_views=4,
        settings={"views_per_round": 2},
        random_state=0,
        cache=False,
    ).fit(*zip(*learned, strict=True))
    assert [item.banks for item in estimator.ensemble_.rounds] == [
        item.banks for item in ensemble.rounds
    ]
    assert estimator.ensemble_.encoders == ensemble.encoders
    assert estimator.n_features_in_ == 32
    first = load(both / "run", A, cache=False).predict_proba(files)
    by_name = [sorted(ensemble.class_names).index(name) for name in ensemble.class_names]
    np.testing.assert_allclose(estimator.predict_proba(files)[:, by_name], first, atol=1e-6)
    # The text moves; what it leaves over was learned beside each encoder of the run.
    second = load(both / "run", B, cache=False, text_only=True).predict_proba(files)
    moved = estimator.transfer(B)
    np.testing.assert_allclose(moved.predict_proba(files)[:, by_name], second, atol=1e-6)


def test_an_estimator_may_answer_with_the_average(both, tmp_path):
    files, labels = images_of(both)
    asked = {"n_views": 4, "random_state": 0, "cache": False}
    one = PromptBoostClassifier([A, B], SENTENCES, **asked).fit(files[::2], labels[::2])
    averaged = PromptBoostClassifier([A, B], SENTENCES, average=True, **asked)
    averaged.fit(files[::2], labels[::2])
    assert averaged.ensemble_ == one.ensemble_
    averaged.save(tmp_path / "kept")
    each = [load(tmp_path / "kept", name, cache=False) for name in (A, B)]
    assert all(classifier.head.residual is not None for classifier in each)
    mean = np.mean([classifier.predict_proba(files) for classifier in each], axis=0)
    chances = averaged.predict_proba(files)
    np.testing.assert_allclose(chances, mean, atol=1e-6)
    assert np.abs(chances - one.predict_proba(files)).max() > 0.01
    assert averaged.predict(files).tolist() == averaged.classes_[mean.argmax(axis=1)].tolist()
    votes = averaged.decision_function(files)
    assert votes.argmax(axis=1).tolist() == mean.argmax(axis=1).tolist()
    np.testing.assert_allclose(list(averaged.staged_decision_function(files))[-1], votes)
    assert [one.store for one in averaged.classifier_.embedders] == [None, None]
    np.testing.assert_allclose(averaged.classifier_.predict_proba(files), mean, atol=1e-6)
    again = PromptBoostClassifier.load(tmp_path / "kept", average=True, cache=False)
    np.testing.assert_allclose(again.predict_proba(files), chances, atol=1e-6)
    first = PromptBoostClassifier.load(tmp_path / "kept", cache=False)
    np.testing.assert_allclose(first.predict_proba(files), one.predict_proba(files), atol=1e-6)
    moved = averaged.transfer("fake:8-3")
    assert len(moved.classifier_.heads) == 1
    with pytest.raises(DataError, match="of one encoder: give images, or set average to False"):
        averaged.predict(np.eye(32))
    with pytest.raises(SettingError, match="average is 'yes', but must be True or False"):
        PromptBoostClassifier([A, B], average="yes", cache=False).fit(files, labels)


def test_what_an_estimator_refuses():
    images = [Image.new("RGB", (8, 8), color) for color in ("red", "tomato", "blue", "navy")]
    y = ["fire", "fire", "ice", "ice"]
    with pytest.raises(DataError, match="of one encoder: give images"):
        PromptBoostClassifier([A, B], cache=False).fit(np.eye(4), y)
    with pytest.raises(SettingError, match="lists the same encoder twice"):
        PromptBoostClassifier([A, A], cache=False).fit(images, y)
    with pytest.raises(SettingError, match="empty list"):
        PromptBoostClassifier([], cache=False).fit(images, y)


def test_an_averaged_classifier(both, tmp_path):
    files, _ = images_of(both)
    averaged = load(both / "run", [A, B], cache=False)
    assert [head.encoder_id for head in averaged.heads] == [A, B]
    members = [load(both / "run", name, cache=False).predict_proba(files) for name in (A, B)]
    chances = averaged.predict_proba(iter(files))
    np.testing.assert_allclose(chances, np.mean(members, axis=0))
    names = np.array(averaged.class_names)
    assert averaged.predict(files).tolist() == names[chances.argmax(axis=1)].tolist()
    votes = averaged.decision_function(files)
    assert votes.argmax(axis=1).tolist() == chances.argmax(axis=1).tolist()
    np.testing.assert_allclose(votes.sum(axis=1), 0, atol=1e-9)
    assert averaged.top_k(files[0], 1)[0][0][0] == averaged.predict(files[0])[0]
    averaged.save(tmp_path / "kept")
    assert len(list((tmp_path / "kept").glob("head-*.safetensors"))) == 2
    again = load(tmp_path / "kept", [A, B], cache=False)
    np.testing.assert_allclose(again.predict_proba(files), chances)
    with pytest.raises(DataError, match="embeddings belong to one encoder"):
        averaged.predict(np.eye(32, dtype=np.float32))
    with pytest.raises(SettingError, match="1 heads for 2 encoders"):
        PromptClassifier(averaged.ensemble, [A, B], averaged.heads[:1])
    log_proba = averaged.predict_log_proba(files)
    np.testing.assert_allclose(log_proba, np.log(chances))
    alone = load(both / "run", [B], cache=False)
    np.testing.assert_array_equal(alone.predict_proba(files), members[1])


def test_a_fit_on_all_images_holds_none_out(task):
    results = fit_run(**request(task, encoder=[A, B], shots=None))
    assert results.task.held_out_images == 0
    assert results.transfers[0].accuracy["promptboost"] is None
    assert results.method(AVERAGED).accuracy is None

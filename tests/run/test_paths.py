"""All ways to fit and refit give the same text, residual, balance and probabilities."""

import numpy as np
import pytest

from promptboost import PromptBoostClassifier, load
from promptboost import refit as refit_classifier
from promptboost.data.shots import load_task
from promptboost.encoders.embedder import open_embedder
from promptboost.errors import LabelError
from promptboost.methods.base import FewShotSet, RowImages
from promptboost.methods.promptboost import Boosting, ResidualClassifier
from promptboost.model import PromptEnsemble
from promptboost.run.fit import pool_for
from promptboost.run.run_folder import RunFolder
from promptboost.training.residual_refit import NoPoolWarning
from tests.cli.cli_tools import call
from tests.run.run_tools import SENTENCES, write_images, write_sentences

FIRST, SECOND = "fake:64-0", "fake:32-1"
VIEWS = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Images, sentences, and other images to predict."""
    root = tmp_path_factory.mktemp("trainer")
    write_images(root / "images", count=6)
    write_images(root / "others", count=3, seed=1)
    write_sentences(root / "sentences.json")
    return root


class Run:
    """A run of ``promptboost fit``, with its training images and its pool."""

    def __init__(self, root, folder, *encoders, capsys, options=()):
        self.folder, self.encoders = folder, encoders
        names = [part for name in encoders for part in ("--encoder", name)]
        prompts, place = ("--prompts", root / "sentences.json"), ("-o", folder)
        arguments = ["fit", root / "images", *place, *prompts, *names, "--shots", 4, *options]
        answer = call(capsys, *arguments, "--views", VIEWS)
        assert answer.code == 0, answer.err
        settings, source = RunFolder(folder).settings, RunFolder(folder).source
        self.task = load_task(source, settings)
        self.pool = pool_for(settings, source, self.task.class_names)
        self.paths = [root / "images" / name for name in self.task.learn.ids]
        self.labels = [image.label for image in self.task.learn.images]

    def classifier(self, folder=None, **options):
        return load(folder or self.folder, list(self.encoders), **options)


def other_images(root):
    return sorted((root / "others").rglob("*.png"))


def check_text(ensemble, expected):
    """Compare prompts and copies, and all that a refit and a prediction need."""
    assert ensemble.class_names == expected.class_names
    assert ensemble.rounds == expected.rounds
    assert ensemble.encoders == expected.encoders
    assert ensemble.pool_fingerprint == expected.pool_fingerprint
    assert sorted(ensemble.sample_weights.values()) == sorted(expected.sample_weights.values())


def check_head(head, expected):
    """Compare residual, its scale, and balance."""
    np.testing.assert_allclose(head.weights, expected.weights, atol=1e-6)
    assert head.text_scale == expected.text_scale
    assert head.residual.any()
    np.testing.assert_allclose(head.residual, expected.residual, atol=1e-6)
    assert head.balance.to_record() == expected.balance.to_record()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ((), {}),
        (("--views-per-round", 0), {"views_per_round": 0}),
        (
            ("--composer", "greedy", "--rounds", 3, "--views-per-round", 2),
            {"composer": "greedy", "rounds": 3, "views_per_round": 2},
        ),
    ],
    ids=["gradient", "no views in rounds", "greedy"],
)
def test_all_paths_are_equal(root, tmp_path, capsys, options, settings):
    run = Run(root, tmp_path / "run", FIRST, capsys=capsys, options=options)
    fitted, images = run.classifier(), other_images(root)
    probabilities = fitted.predict_proba(images)
    ensemble = PromptEnsemble.load(tmp_path / "run/ensemble.json")

    names = {"composer": "composer", "rounds": "n_rounds"}
    parameters = {names[name]: settings[name] for name in settings if name in names}
    estimator = PromptBoostClassifier(
        FIRST,
        SENTENCES,
        n_views=VIEWS,
        random_state=0,
        settings={name: settings[name] for name in settings if name not in names},
        **parameters,
    ).fit(run.paths, run.labels)
    check_text(estimator.ensemble_, ensemble)
    check_head(estimator.head_, fitted.head)
    np.testing.assert_allclose(estimator.predict_proba(images), probabilities, atol=1e-6)

    encoder = open_embedder([FIRST])
    rows = encoder.images(run.task.learn, views=VIEWS)
    shots = FewShotSet(RowImages({encoder.id: rows}), run.task.learn.labels, run.task.class_names)
    method = Boosting(**settings)
    trained = method.train(shots, run.pool, encoder)
    check_text(trained.ensemble, estimator.ensemble_)
    check_head(trained.head, fitted.head)
    np.testing.assert_allclose(
        trained.head.predict_proba(encoder.originals(images)), probabilities, atol=1e-6
    )
    compared = method.fit(shots, run.pool, encoder)
    assert isinstance(compared, ResidualClassifier)
    logits = compared.logits(RowImages({encoder.id: encoder.images(images)}))
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        exponentials / exponentials.sum(axis=1, keepdims=True), probabilities, atol=1e-6
    )

    assert call(capsys, "refit", run.folder, "-o", tmp_path / "refitted").code == 0
    again = run.classifier(tmp_path / "refitted")
    assert again.ensemble == ensemble
    check_head(again.head, fitted.head)
    np.testing.assert_allclose(again.predict_proba(images), probabilities, atol=1e-6)

    for classifier in (load(run.folder), load(run.folder, text_only=True), estimator.classifier_):
        again = refit_classifier(classifier, run.paths, run.labels, run.pool)
        assert again.ensemble.rounds == ensemble.rounds
        check_head(again.head, fitted.head)
        np.testing.assert_allclose(again.predict_proba(images), probabilities, atol=1e-6)


def test_all_paths_are_equal_on_several_encoders(root, tmp_path, capsys):
    run = Run(root, tmp_path / "run", FIRST, SECOND, capsys=capsys)
    fitted, images = run.classifier(), other_images(root)
    ensemble = PromptEnsemble.load(tmp_path / "run/ensemble.json")
    assert [head.encoder_id for head in fitted.heads] == [FIRST, SECOND]
    alone = [load(run.folder, name).predict_proba(images) for name in (FIRST, SECOND)]

    estimator = PromptBoostClassifier(
        [FIRST, SECOND], SENTENCES, n_views=VIEWS, average=True, random_state=0
    ).fit(run.paths, run.labels)
    check_text(estimator.ensemble_, ensemble)
    np.testing.assert_allclose(estimator.predict_proba(images), np.mean(alone, axis=0), atol=1e-6)
    first = PromptBoostClassifier([FIRST, SECOND], SENTENCES, n_views=VIEWS, random_state=0).fit(
        run.paths, run.labels
    )
    np.testing.assert_allclose(first.predict_proba(images), alone[0], atol=1e-6)

    assert call(capsys, "refit", run.folder, "-o", tmp_path / "refitted").code == 0
    both = refit_classifier(fitted, run.paths, run.labels, run.pool)
    turned = load(run.folder, [SECOND, FIRST])
    turned = refit_classifier(turned, run.paths, run.labels, run.pool)
    refitted = [
        run.classifier(tmp_path / "refitted").heads,
        estimator.classifier_.heads,
        both.heads,
        turned.heads[::-1],
    ]
    for number, expected in enumerate(fitted.heads):
        for heads in refitted:
            check_head(heads[number], expected)
    for classifier in (both, turned):
        np.testing.assert_allclose(
            classifier.predict_proba(images), np.mean(alone, axis=0), atol=1e-6
        )


def test_a_class_added_to_a_run_and_to_a_saved_estimator_has_the_same_balance(
    root, tmp_path, capsys
):
    run = Run(root, tmp_path / "run", FIRST, capsys=capsys)
    estimator = PromptBoostClassifier(FIRST, SENTENCES, n_views=VIEWS, random_state=0)
    estimator.fit(run.paths, run.labels).save(tmp_path / "saved")
    saved = load(tmp_path / "saved")
    assert saved.head.balance.to_record() == run.classifier().head.balance.to_record()
    probabilities = []
    for folder in (run.folder, tmp_path / "saved"):
        text = PromptEnsemble.load(folder / "ensemble.json")
        text.add_class("fog", ["grey and white", "a dull light"]).save(folder / "ensemble.json")
        classifier = load(folder)
        assert classifier.head.balance.class_names == saved.class_names
        probabilities.append(classifier.predict_proba(other_images(root)))
    np.testing.assert_allclose(*probabilities, atol=1e-6)
    text_rows = load(run.folder).ensemble.embed(open_embedder([FIRST])).weights
    assert np.abs(load(run.folder, text_only=True).head.matrix - text_rows)[-1].max() > 1e-3


def test_a_refit_without_a_pool_warns_and_uses_the_residual_in_full(root, tmp_path, capsys):
    run = Run(root, tmp_path / "run", FIRST, capsys=capsys)
    classifier = load(run.folder)
    with pytest.warns(NoPoolWarning, match=r"refit\(classifier, images, labels, pool\)"):
        full = refit_classifier(classifier, run.paths, run.labels)
    assert full.head.residual.any()
    assert full.head.balance is not None
    assert full.ensemble is classifier.ensemble
    # The missing pool is recorded, in the saved head too.
    full.save(tmp_path / "saved")
    assert load(tmp_path / "saved").head.pool_fingerprint is None
    assert classifier.head.pool_fingerprint == classifier.ensemble.pool_fingerprint
    assert not np.allclose(full.head.residual, classifier.head.residual)


def test_a_refit_of_some_classes_balances_the_others(root, tmp_path, capsys):
    run = Run(root, tmp_path / "run", FIRST, capsys=capsys)
    classifier, some = load(run.folder), [label != "sea" for label in run.labels]
    images = [path for path, chosen in zip(run.paths, some, strict=True) if chosen]
    labels = [label for label, chosen in zip(run.labels, some, strict=True) if chosen]
    head = refit_classifier(classifier, images, labels, run.pool).head
    sea = classifier.class_names.index("sea")
    assert head.balance.class_names == tuple(n for n in classifier.class_names if n != "sea")
    assert not head.residual[sea].any()
    assert np.delete(head.residual, sea, axis=0).any(axis=1).all()
    with pytest.raises(LabelError, match="images of two classes or more are needed"):
        refit_classifier(classifier, images[:1], labels[:1], run.pool)
    with pytest.raises(LabelError, match="There is no class 'lake'"):
        refit_classifier(classifier, images, ["lake"] * len(images), run.pool)

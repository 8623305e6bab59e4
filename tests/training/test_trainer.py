"""Trainer: texts and heads of one encoder and of several, resumed, refitted, and watched."""

from dataclasses import replace

import numpy as np
import pytest

from promptboost.config import BoostConfig
from promptboost.encoders.embedder import Embedder, members_of, open_embedder
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.group import EncoderGroup
from promptboost.errors import DataError
from promptboost.model import PromptEnsemble
from promptboost.pool import build_pool
from promptboost.training import PoolRows, PoolTexts, Trainer
from promptboost.training.examples import Examples
from tests.progress_tools import Recorder
from tests.run.run_tools import SENTENCES, write_images

FIRST, SECOND = "fake:64-0", "fake:32-1"
VIEWS = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of images."""
    root = tmp_path_factory.mktemp("trainer")
    write_images(root / "images", count=6)
    return root


def embedded(root, encoder):
    """Examples, an embedded pool and encoders, as :meth:`Trainer.fit` takes them."""
    paths, names = sorted((root / "images").rglob("*.png")), sorted(SENTENCES)
    rows, members = encoder.images(paths, views=VIEWS), members_of(encoder)
    labels = np.array([names.index(path.parent.name) for path in paths])
    ids = tuple(str(path.relative_to(root)) for path in paths)
    examples = Examples(rows[:, 0], labels, ids, views=rows[:, 1:], encoders=len(members))
    pool = build_pool(names, templates=["a {}.", "the {}."], descriptions=SENTENCES)
    return examples, PoolRows.embed(PoolTexts.of(pool), encoder), members


@pytest.fixture(scope="module", params=[(FIRST,), (FIRST, SECOND)], ids=["one", "two"])
def parts(request, root):
    """The arguments of a fit on one encoder, and on two."""
    return embedded(root, open_embedder(request.param, cache=False))


@pytest.mark.parametrize("composer", ["gradient", "greedy"])
def test_a_resumed_fit_has_the_same_text_and_heads(parts, composer):
    trainer = Trainer(BoostConfig(composer=composer, rounds=3, views_per_round=2, temperature=0.1))
    ensembles = []
    whole = trainer.fit(*parts, on_round=lambda ensemble, _: ensembles.append(ensemble))
    for stage in ensembles[:-1]:
        saved = PromptEnsemble.from_json(stage.to_json(sample_weights=True))
        resumed = trainer.fit(*parts, resume=saved)
        assert resumed.ensemble == whole.ensemble
        for head, expected in zip(resumed.heads, whole.heads, strict=True):
            assert np.array_equal(head.residual, expected.residual)
            assert head.text_scale == expected.text_scale
            assert head.balance.to_record() == expected.balance.to_record()


def test_a_refit_of_a_fit_changes_nothing(parts):
    examples, pool, members = parts
    trainer = Trainer()
    fitted = trainer.fit(*parts)
    again = trainer.refit(fitted.ensemble, examples, members, pool)
    for head, expected in zip(again.heads, fitted.heads, strict=True):
        assert np.array_equal(head.matrix, expected.matrix)
        assert head.text_scale == expected.text_scale
    assert [item.losses for item in again.residuals] == [item.losses for item in fitted.residuals]


def test_classes_of_one_group_are_never_held_out(root):
    examples, pool, members = embedded(root, open_embedder((FIRST,), cache=False))
    whole, texts = Trainer().fit(examples, pool, members), [pool.of(0, 64).templates[:, 0]]
    grouped = replace(examples, groups=examples.labels)
    for given, held_out in ((examples, True), (grouped, False)):
        fits = [
            Trainer().fit(given, pool, members),
            Trainer().refit(whole.ensemble, given, members, pool),
            Trainer().refit(whole.ensemble, given, members, unseen=texts),
        ]
        assert [fit.residuals[0].losses is not None for fit in fits] == [held_out] * 3


class Quiet(FakeEncoder):
    """An encoder with a logit scale of its own."""

    logit_scale = 25.0


def test_a_refit_needs_neither_the_order_nor_all_of_the_encoders(root):
    encoders = [Embedder(Quiet(32, 0)), Embedder(FakeEncoder(16, 1)), Embedder(FakeEncoder(8, 2))]
    trainer = Trainer()
    fitted = trainer.fit(*embedded(root, EncoderGroup(encoders)))
    examples, pool, members = embedded(root, EncoderGroup(encoders[::-1]))
    turned = trainer.refit(fitted.ensemble, examples, members, pool)
    for head, expected in zip(turned.heads[::-1], fitted.heads, strict=True):
        np.testing.assert_allclose(head.residual, expected.residual, atol=1e-4)
        assert head.text_scale == pytest.approx(expected.text_scale)
    examples, pool, members = embedded(root, EncoderGroup(encoders[1:]))
    some = trainer.refit(fitted.ensemble, examples, members, pool)
    assert [head.encoder_id for head in some.heads] == ["fake:16-1", "fake:8-2"]


def test_fewer_heads_are_the_first_ones(parts):
    whole, one = Trainer().fit(*parts), Trainer().fit(*parts, n_heads=1)
    assert one.ensemble == whole.ensemble
    assert len(one.heads) == len(one.residuals) == 1
    assert np.array_equal(one.head.matrix, whole.head.matrix)


def test_without_a_residual_the_heads_are_the_text(parts):
    fitted = Trainer(BoostConfig(residual=False)).fit(*parts)
    assert fitted.residuals == (None,) * len(fitted.heads)
    for head, member in zip(fitted.heads, parts[2], strict=True):
        assert (head.residual, head.balance) == (None, None)
        assert np.array_equal(head.matrix, fitted.ensemble.embed(member).matrix)


def test_progress_reaches_the_total_of_each_stage_and_changes_nothing(parts):
    progress = Recorder()
    fitted = Trainer(progress=progress).fit(*parts)
    progress.check("cross-validating", "composing", "fitting the residual")
    assert fitted.ensemble == Trainer().fit(*parts).ensemble
    progress = Recorder()
    examples, pool, members = parts
    Trainer(progress=progress).refit(fitted.ensemble, examples, members, pool)
    progress.check("cross-validating", "fitting the residual")


def test_a_refit_needs_two_classes(parts):
    examples, pool, members = parts
    one_class = replace(examples, labels=np.zeros_like(examples.labels))
    ensemble = Trainer().fit(*parts).ensemble
    with pytest.raises(DataError, match="images of two classes or more"):
        Trainer().refit(ensemble, one_class, members, pool)


@pytest.mark.parametrize("composer", ["gradient", "greedy"])
def test_a_class_without_images_has_its_sentences_and_no_residual(parts, composer):
    examples, pool, members = parts
    names = pool.texts.class_names
    bare = names.index("leaf")
    some = examples.subset(np.flatnonzero(examples.labels != bare))
    trainer = Trainer(BoostConfig(composer=composer, rounds=2, views_per_round=2, temperature=0.1))
    stages = []
    fitted = trainer.fit(some, pool, members, on_round=lambda text, _: stages.append(text))
    sentences = [text for text in pool.texts.prompt_texts[bare] if text in SENTENCES["leaf"]]
    for round_ in fitted.ensemble.rounds:
        assert round_.banks["leaf"] == dict.fromkeys(sentences, 1)
    assert fitted.ensemble.class_names == names
    assert fitted.ensemble.pool_fingerprint == pool.texts.fingerprint
    for head in fitted.heads:
        assert not head.residual[bare].any()
        assert head.balance.class_names == tuple(name for name in names if name != "leaf")
    # The others are fitted as if the pool did not have it, and the fit can be resumed.
    numbers = np.unique(some.labels, return_inverse=True)[1]
    others = pool.of_classes(np.delete(np.arange(len(names)), bare))
    alone = trainer.fit(replace(some, labels=numbers), others, members)
    for name in alone.ensemble.class_names:
        assert fitted.ensemble.prompts(name) == alone.ensemble.prompts(name)
    assert trainer.fit(some, pool, members, resume=stages[0]).ensemble == fitted.ensemble
    again = trainer.refit(fitted.ensemble, some, members, pool)
    for head, other in zip(fitted.heads, again.heads, strict=True):
        assert np.array_equal(head.matrix, other.matrix)


def test_a_class_without_images_is_recognized_by_its_sentences(root):
    examples, pool, members = embedded(root, open_embedder((FIRST,), cache=False))
    for name in ("ember", "leaf", "sea"):  # those of night suit ember and sea better
        bare = pool.texts.class_names.index(name)
        shown = np.flatnonzero(examples.labels != bare)
        for residual in (True, False):
            trainer = Trainer(BoostConfig(residual=residual))
            head = trainer.fit(examples.subset(shown), pool, members).head
            right = head.predict_index(examples.rows) == examples.labels
            assert right[examples.labels == bare].mean() >= 0.5, name
            assert right[shown].mean() > 0.7, name


def test_encoders_can_be_functions_of_texts(parts):
    examples, pool, members = parts
    fitted = Trainer().fit(examples, pool, [member.encode_texts for member in members])
    assert fitted.ensemble.encoders == ()
    assert [head.dim for head in fitted.heads] == [member.dim for member in members]
    predicted = fitted.head.predict_index(examples.rows[:, : members[0].dim])
    assert np.mean(predicted == examples.labels) > 0.8


def test_a_class_has_at_most_one_template_and_no_more_prompts_than_copies(parts):
    names = parts[1].texts.class_names
    filled = dict(zip(names, map(set, parts[1].texts.template_texts), strict=True))
    for rounds in (1, 3):
        ensemble = (
            Trainer(BoostConfig(rounds=rounds, copies=6, residual=False)).fit(*parts).ensemble
        )
        assert {sum(r.banks[name].values()) for r in ensemble.rounds for name in names} == {
            6 // rounds
        }
        assert all(len(ensemble.prompts(name)) <= 6 for name in names)
        for round_ in ensemble.rounds:
            assert all(len(round_.banks[name].keys() & filled[name]) <= 1 for name in names)


def test_templates_are_skipped_where_there_are_descriptions():
    pool = build_pool(
        ["owl", "bat"], templates=["a {}.", "the {}."], descriptions={"owl": ["eyes"]}
    )
    assert PoolTexts.of(pool).skipped == (2, 0)

"""Trainer: texts and heads of one encoder and of several, resumed, refitted, and watched."""

from dataclasses import replace

import numpy as np
import pytest

from promptboost.config import BoostConfig
from promptboost.encoders.base import members_of
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.group import EncoderGroup, open_embedder
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


def test_encoders_can_be_functions_of_texts(parts):
    examples, pool, members = parts
    fitted = Trainer().fit(examples, pool, [member.encode_texts for member in members])
    assert fitted.ensemble.encoders == ()
    assert [head.dim for head in fitted.heads] == [member.dim for member in members]
    predicted = fitted.head.predict_index(examples.rows[:, : members[0].dim])
    assert np.mean(predicted == examples.labels) > 0.8

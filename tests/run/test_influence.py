"""Leaving a sentence out, against doing it the long way."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from promptboost.config import BoostConfig
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import PoolError
from promptboost.model import PromptClassifier, PromptEnsemble, Round
from promptboost.model.scores import SentenceScores
from promptboost.run.influence import confused_pairs, sentence_influences, training_influences
from promptboost.training.examples import Examples
from tests.model.ensembles import PATIENT, ensembles
from tests.model.test_explanation import classifier_of, images, rows_of
from tests.model.test_scores import make_scores


def a_case(ensemble, seed):
    classifier, X = classifier_of(ensemble, seed), images(30, seed)
    labels = np.random.default_rng(seed).integers(0, len(ensemble.class_names), len(X))
    return (
        classifier,
        SentenceScores(X, rows_of(ensemble.texts(), seed), classifier.head),
        X,
        labels,
    )


def margins_of(logits, labels):
    images = np.arange(len(labels))
    others = logits.copy()
    others[images, labels] = -np.inf
    return logits[images, labels] - others.max(axis=1)


@PATIENT
@given(ensembles(temperature=0.5), st.integers(0, 99))
def test_each_sentence_is_left_out_exactly(ensemble, seed):
    _, scores, _, labels = a_case(ensemble, seed)
    before = scores.logits(ensemble).argmax(axis=1)
    margins = margins_of(scores.logits(ensemble), labels)
    found = sentence_influences(scores, ensemble, labels)
    assert len(found) == ensemble.n_prompts
    assert [item.gain for item in found] == sorted([item.gain for item in found], reverse=True)
    for item in found:
        try:
            edited = ensemble.remove(item.prompt, item.class_name)
        except PoolError:
            assert not item.removable
            continue
        logits = scores.logits(edited)
        lost = (margins - margins_of(logits, labels)).sum()
        size = max(1, (labels == ensemble.class_names.index(item.class_name)).sum())
        assert item.margin == pytest.approx(lost / size, rel=1e-4, abs=1e-4)
        after = logits.argmax(axis=1)
        close = np.abs(np.diff(np.sort(logits, axis=1)[:, -2:], axis=1)) < 1e-6
        if close.any():
            continue  # which of two equals wins is a matter of rounding
        assert item.changed == (after != before).sum()
        assert item.mended == ((after == labels) & (before != labels)).sum()
        assert item.broken == ((after != labels) & (before == labels)).sum()


@PATIENT
@given(ensembles(temperature=0.5), st.integers(0, 99))
def test_contributions_are_means_of_explanations(ensemble, seed):
    classifier, scores, X, labels = a_case(ensemble, seed)
    names = ensemble.class_names
    answers = scores.logits(ensemble).argmax(axis=1)
    found = confused_pairs(scores, ensemble, labels)
    assert sum(item.count for item in found) == (answers != labels).sum()
    assert [item.count for item in found] == sorted([item.count for item in found], reverse=True)
    for item in found[:2]:
        chosen = (labels == names.index(item.true)) & (answers == names.index(item.answered))
        assert chosen.sum() == item.count
        whys = classifier.explain(X[chosen], answer=item.answered, against=item.true)
        assert item.residual == pytest.approx(np.mean([why.residual for why in whys]), abs=1e-4)
        parts = {}
        for why in whys:
            for part in why.contributions:
                key = (part.class_name, part.prompt)
                parts[key] = parts.get(key, 0.0) + part.value / len(whys)
        values = [part.value for part in item.sentences]
        assert values == pytest.approx(sorted(parts.values(), reverse=True)[:3], rel=1e-3, abs=1e-3)
        for part in item.sentences:
            expected = pytest.approx(part.value, rel=1e-3, abs=1e-3)
            assert parts[part.class_name, part.prompt] == expected


@pytest.mark.parametrize("seed", range(4))
def test_beside_a_class_added_by_words_each_sentence_is_left_out_exactly(seed):
    """Its balance depends on the sentences of all others, so nothing can be followed class by class."""
    ensemble, scores = make_scores(residual=True, seed=seed, balance=True)
    ensemble = ensemble.add_class("new", ["sentence 7", "sentence 8", "sentence 0"])
    originals = {name: name for name in ensemble.class_names if name != "new"}
    labels = np.random.default_rng(seed).integers(0, len(ensemble.class_names), 60)
    before = scores.logits(ensemble, originals).argmax(axis=1)
    found = sentence_influences(scores, ensemble, labels, originals)
    assert len(found) == ensemble.n_prompts
    assert any(item.mended for item in found)
    assert any(item.broken for item in found)
    for item in found:
        edited = ensemble.remove(item.prompt, item.class_name)
        after_logits = scores.logits(edited, originals)
        after = after_logits.argmax(axis=1)
        lost = margins_of(scores.logits(ensemble, originals), labels) - margins_of(
            after_logits, labels
        )
        size = (labels == ensemble.class_names.index(item.class_name)).sum()
        assert item.margin == pytest.approx(lost.sum() / size)
        assert item.changed == (after != before).sum()
        assert item.mended == ((after == labels) & (before != labels)).sum()
        assert item.broken == ((after != labels) & (before == labels)).sum()


def test_a_classifier_is_not_changed_by_being_asked():
    banks = {"cat": {"a cat": 1, "a pet": 1}, "dog": {"a dog": 1}}
    ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.0, 0.0),))
    classifier = classifier_of(ensemble)
    assert isinstance(classifier, PromptClassifier)
    before = ensemble.to_json()
    scores = SentenceScores(images(5), rows_of(ensemble.texts()), classifier.head)
    sentence_influences(scores, ensemble, np.zeros(5, dtype=int))
    assert ensemble.to_json() == before


def test_on_training_images_a_useful_sentence_matters_and_a_useless_one_does_not():
    encoder = FakeEncoder(dim=64)
    images = [f"{word} {i}" for word in ("red", "blue") for i in range(4)]
    examples = Examples(
        encoder.encode_texts(images), np.repeat([0, 1], 4), tuple(images), encoders=1
    )
    banks = {"fire": {"a red thing": 4, "some blue thing": 1}, "ice": {"a blue thing": 5}}
    settings = {"logit_scale": 10.0}
    ensemble = PromptEnsemble(
        ("fire", "ice"), (Round("a {}", banks, 0.0, 0.0),), logit_scale=10.0, settings=settings
    )
    found = training_influences(ensemble, examples, encoder, BoostConfig(copies=5))
    assert [(i.class_name, i.prompt, i.weight, i.removable) for i in found] == [
        ("fire", "a red thing", 0.8, True),
        ("fire", "some blue thing", 0.2, True),
        ("ice", "a blue thing", 1.0, False),
    ]
    useful, useless, _ = found
    assert useful.margin > 0 >= useless.margin
    assert [i.matters for i in found] == [True, False, True]
    alone = examples.subset(np.array([0, 4, 5]))
    assert training_influences(ensemble, alone, encoder, BoostConfig()) == []
    assert training_influences(ensemble, examples, encoder, BoostConfig(composer="greedy")) == []

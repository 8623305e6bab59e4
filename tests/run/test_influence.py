"""Leaving a sentence out, against doing it the long way."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from promptboost.errors import PoolError
from promptboost.model import PromptClassifier
from promptboost.model.scores import SentenceScores
from promptboost.run.influence import confused_pairs, sentence_influences
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


@PATIENT
@given(ensembles(temperature=0.5), st.integers(0, 99))
def test_each_sentence_is_left_out_exactly(ensemble, seed):
    _, scores, _, labels = a_case(ensemble, seed)
    before = scores.logits(ensemble).argmax(axis=1)
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
        after = scores.logits(edited, originals).argmax(axis=1)
        assert item.changed == (after != before).sum()
        assert item.mended == ((after == labels) & (before != labels)).sum()
        assert item.broken == ((after != labels) & (before == labels)).sum()


def test_a_classifier_is_not_changed_by_being_asked():
    from tests.model.test_explanation import PromptEnsemble, Round

    banks = {"cat": {"a cat": 1, "a pet": 1}, "dog": {"a dog": 1}}
    ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.0, 0.0),))
    classifier = classifier_of(ensemble)
    assert isinstance(classifier, PromptClassifier)
    before = ensemble.to_json()
    scores = SentenceScores(images(5), rows_of(ensemble.texts()), classifier.head)
    sentence_influences(scores, ensemble, np.zeros(5, dtype=int))
    assert ensemble.to_json() == before

"""An explanation adds up to the margin, and what it says would change the answer does."""

import json
import re
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from promptboost.boosting.residual import Residual
from promptboost.errors import LabelError, SettingError
from promptboost.model import PromptClassifier, PromptEnsemble, Round
from promptboost.model.prediction import Explanation
from promptboost.model.scores import SentenceScores
from tests.model.ensembles import PATIENT, ensembles

DIM = 8


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def rows_of(texts, seed=0):
    rng = np.random.default_rng(seed)
    return dict(
        zip(texts, unit(rng.standard_normal((len(texts), DIM))).astype(np.float32), strict=True)
    )


def images(count=6, seed=1):
    return unit(np.random.default_rng(seed).standard_normal((count, DIM))).astype(np.float32)


def classifier_of(ensemble, seed=0, residual=True):
    vectors = rows_of(ensemble.texts(), seed)
    head = ensemble.embed(vectors)
    if residual:
        V = np.random.default_rng(seed + 2).standard_normal(head.weights.shape)
        head = head.with_residual(Residual(V, text_scale=7.0))
    return PromptClassifier(ensemble, vectors, head)


def logits_of(classifier, X):
    """The head's logits, and the factor that mean cosines have in them."""
    head = classifier.head
    factor = head.logit_scale if head.residual is None else head.text_scale
    factor = head.rounds / head.temperature if factor is None else factor
    return head.scores(X).astype(float) * factor, factor


@PATIENT
@given(ensembles(temperature=0.5), st.integers(0, 99), st.booleans())
def test_parts_add_up_to_the_margin(ensemble, seed, residual):
    classifier, X = classifier_of(ensemble, seed, residual), images(seed=seed)
    answers, (logits, factor) = classifier.predict(X), logits_of(classifier, X)
    for why, answer, logit in zip(classifier.explain(X), answers, logits, strict=True):
        parts = [item.value for item in why.contributions]
        assert sum(parts) + why.residual == pytest.approx(why.margin, abs=1e-9 * max(factor, 1))
        names = list(ensemble.class_names)
        difference = logit[names.index(why.answer)] - logit[names.index(why.against)]
        assert why.margin == pytest.approx(difference, abs=2e-6 * max(factor, 1))
        assert why.answer.rstrip("\0") == answer or abs(why.margin) < 2e-6 * max(factor, 1)
        assert {item.class_name for item in why.contributions} == {why.answer, why.against}
        sizes = [abs(part) for part in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert Explanation.from_record(json.loads(json.dumps(why.record()))).groups == why.groups


@PATIENT
@given(ensembles(temperature=0.5), st.integers(0, 99), st.booleans(), st.none() | st.integers(1, 9))
def test_groups_add_up_to_the_margin_with_few_terms(ensemble, seed, residual, most):
    for why in classifier_of(ensemble, seed, residual).explain(images(seed=seed)):
        few = Explanation.from_record(why.record(most))
        terms = [value for group in few.groups for value, _ in group.terms]
        tolerance = 1e-9 * max(map(abs, (why.margin, why.residual, *terms, 1)))
        for values in (terms, [group.value for group in few.groups]):
            assert sum(values) == pytest.approx(why.margin, abs=tolerance)
        titles = [group.title for group in few.groups]
        assert titles[:2] == [f"Like {why.answer}", f"Unlike {why.against}"]
        assert len(titles) == 2 + bool(why.residual)
        shown = [term for term in few.contributions if term.prompt]
        assert len(shown) + bool(why.residual) <= max(most or 99, bool(why.residual))
        assert sum(term.count for term in few.contributions) == len(why.contributions)
        smallest = min((abs(term.value) for term in shown), default=np.inf)
        hidden = [term for term in why.contributions if term not in shown]
        assert all(abs(term.value) <= smallest for term in hidden)
        assert few.folded(most).groups == few.groups
        middle = np.mean(
            [sum(t.weight * t.cosine for t in g.contributions) for g in why.groups[:2]]
        )
        for term in few.contributions:  # those that are summed up, too
            fits_better = term.cosine > middle
            if abs(term.value) > tolerance:
                assert (term.value > 0) == (fits_better == (term.class_name == why.answer))


def test_six_terms_are_printed_and_all_on_demand():
    banks = {name: {f"{name} {k}": 1 for k in range(5)} for name in ("cat", "dog")}
    ensemble = PromptEnsemble(tuple(banks), (Round("a {}", banks, 0.0, 0.0),))
    (why,) = classifier_of(ensemble).explain(images(1))
    why = replace(why, removals=())
    for show in (why.text, why.html):
        few, everything = show(), show(None)
        assert sum(few.count(text) for text in ensemble.texts()) == 5  # and the residual
        assert sum(everything.count(text) for text in ensemble.texts()) == 10
        assert all(few.count(word) == 1 for word in ("Like ", "Unlike ", "Residual", why.reading))
        assert "more" not in everything
    assert str(why) == why.text()
    assert f"{why.answer} ({100 * why.probability:.0f}%) rather than {why.against}" in str(why)
    assert sum(int(number) for number in re.findall(r"(\d) more", str(why))) == 5


@PATIENT
@given(ensembles(temperature=0.5), st.integers(0, 99))
def test_without_the_sentences_named_the_other_class_is_ahead(ensemble, seed):
    classifier, X = classifier_of(ensemble, seed, residual=False), images(seed=seed)
    for why, row in zip(classifier.explain(X), X, strict=True):
        edited = ensemble
        for text in why.removals:
            edited = edited.remove(text, why.answer)
        if why.removals:
            changed = PromptClassifier(edited, rows_of(ensemble.texts(), seed))
            (after,) = changed.explain(row[None], answer=why.answer, against=why.against)
            assert after.margin < 1e-5


def test_any_two_classes_can_be_compared():
    banks = {name: {f"a {name}": 1, f"one {name}": 2} for name in ("cat", "dog", "owl")}
    ensemble = PromptEnsemble(tuple(banks), (Round("a {}", banks, 0.0, 0.0),))
    classifier = classifier_of(ensemble)
    (why,) = classifier.explain(images(1)[0], answer="owl", against="cat")
    assert (why.answer, why.against, why.image) == ("owl", "cat", "row 1")
    (back,) = classifier.explain(images(1)[0], answer="cat", against="owl")
    assert back.margin == pytest.approx(-why.margin)
    with pytest.raises(LabelError, match="there is no class 'cow'; there are 'cat', 'dog', 'owl'"):
        classifier.explain(images(1), against="cow")
    with pytest.raises(SettingError, match="both 'cat'"):
        classifier.explain(images(1), answer="cat", against="cat")


def test_the_answer_is_compared_with_another_class_where_it_is_asked_against_itself():
    banks = {name: {f"a {name}": 1} for name in ("cat", "dog", "owl")}
    ensemble = PromptEnsemble(tuple(banks), (Round("a {}", banks, 0.0, 0.0),))
    classifier = classifier_of(ensemble)
    (best,) = classifier.explain(images(1))
    (other,) = classifier.explain(images(1), against=best.answer)
    assert (other.answer, other.against) == (best.against, best.answer)
    assert other.margin < 0


def test_averages_have_no_parts():
    banks = {"cat": {"a cat": 1}, "dog": {"a dog": 1}}
    ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.0, 0.0),))
    both = PromptClassifier(ensemble, ["fake:32-0", "fake:16-1"], cache=False)
    with pytest.raises(SettingError, match="one encoder at a time"):
        both.explain(images(1))


def test_html_escapes_what_it_shows():
    banks = {"<cat>": {"<script>alert(1)</script>": 1}, 'd"og': {"a dog & co": 1}}
    ensemble = PromptEnsemble(tuple(banks), (Round("a {}", banks, 0.0, 0.0),))
    (why,) = classifier_of(ensemble).explain(images(1))
    page = why._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;cat&gt;" in page
    assert "a dog &amp; co" in page


@PATIENT
@given(ensembles(temperature=0.5), st.integers(0, 99), st.booleans())
def test_scores_answer_as_the_head_does_before_and_after_an_edit(ensemble, seed, residual):
    classifier, X = classifier_of(ensemble, seed, residual), images(seed=seed)
    vectors = {**rows_of(ensemble.texts(), seed), **rows_of(["something new"], seed + 5)}
    scores = SentenceScores(X, vectors, classifier.head)
    for text in (ensemble, ensemble.add(ensemble.class_names[0], "something new", 3), ensemble):
        head = text.embed(vectors)
        if residual:
            V = classifier.head.residual
            head = head.with_residual(Residual(V, text_scale=7.0))
        logits = scores.logits(text)
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        assert chances == pytest.approx(head.predict_proba(X), abs=1e-3)

"""Answers that are followed from text to text are those of the logits, whatever the edits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.model import PromptEnsemble, Round
from promptboost.model.edits import Change, apply_changes, original_names
from promptboost.model.head import Balance
from promptboost.model.scores import SentenceScores

WORDS = [f"sentence {number}" for number in range(9)]
NAMES = ("a", "b", "c", "d", "e")


def embedded(texts):
    """Rows of few different numbers, so that classes are often equal."""
    rows = [np.random.default_rng(sum(map(ord, text))).integers(0, 2, 4) for text in texts]
    return np.array(rows, dtype=np.float32) - 0.5


def make_scores(residual, seed=0, balance=False):
    banks = {name: {WORDS[k]: 1, WORDS[k + 1]: 1} for k, name in enumerate(NAMES)}
    ensemble = PromptEnsemble(NAMES, (Round("{}", banks, 0.0, 0.0),), logit_scale=4.0)
    head = ensemble.embed(embedded)
    rng = np.random.default_rng(seed)
    if residual:
        rest = rng.integers(-1, 2, head.weights.shape).astype(np.float32)
        head = replace(head, residual=rest, text_scale=4.0)
    if balance:
        center = np.array([0.5, 0.25, 0.0, -0.5])
        head = replace(head, balance=Balance(NAMES, center, text_lift=0.1, lift=0.2))
    images = rng.integers(-2, 3, (60, 4)).astype(np.float32) / 4
    return ensemble, SentenceScores(images, embedded, head)


@st.composite
def steps(draw):
    kind = draw(
        st.sampled_from(
            ["remove", "add", "weight", "rename-class", "add-class", "drop-class", "undo"]
        )
    )
    return kind, draw(st.integers(0, 99)), draw(st.sampled_from(WORDS)), draw(st.integers(0, 99))


def as_change(step, ensemble):
    kind, number, sentence, other = step
    name = ensemble.class_names[number % len(ensemble.class_names)]
    there = list(ensemble.prompts(name))
    own = there[other % len(there)]
    if kind == "remove":
        return Change(kind=kind, class_name=name, sentence=own) if len(there) > 1 else None
    if kind == "add":
        return Change(kind=kind, class_name=name, sentence=sentence)
    if kind == "weight":
        return (
            Change(kind=kind, class_name=name, sentence=own, share=0.3) if len(there) > 1 else None
        )
    if kind in ("rename-class", "add-class"):
        new = f"name {other}"
        if new in ensemble.class_names:
            return None
        rename = kind == "rename-class"
        return Change(
            kind=kind,
            class_name=name if rename else new,
            to=new if rename else None,
            sentences=(sentence,),
        )
    return Change(kind=kind, class_name=name) if len(ensemble.class_names) > 2 else None


@settings(max_examples=40, deadline=None)
@given(st.lists(steps(), max_size=12), st.booleans(), st.booleans(), st.integers(0, 3))
def test_answers_are_the_argmax_of_the_logits_after_any_edits(taken, residual, balance, seed):
    base, scores = make_scores(residual, seed, balance)
    changes = []
    for step in taken:
        text = apply_changes(base, changes)
        if step[0] == "undo":
            changes = changes[:-1]
        elif change := as_change(step, text):
            changes = [*changes, change]
        text = apply_changes(base, changes)
        originals = original_names(NAMES, changes)
        logits = scores.logits(text, originals)
        assert (scores.answers(text, originals) == logits.argmax(axis=1)).all()
        best, chosen, second, next_one = scores.two_best(text, originals)
        rows = np.arange(len(logits))
        assert (chosen == logits.argmax(axis=1)).all()
        assert (best == logits[rows, chosen]).all()
        logits[rows, chosen] = -np.inf
        assert (next_one == logits.argmax(axis=1)).all()
        assert (second == logits[rows, next_one]).all()


@pytest.mark.parametrize("residual", [False, True])
def test_an_edit_reads_only_what_is_new(residual):
    ensemble, scores = make_scores(residual)
    asked = []
    scores.source = lambda texts: asked.extend(texts) or embedded(texts)
    scores.answers(ensemble)
    asked.clear()
    scores.answers(ensemble.remove(WORDS[1], "a"))
    scores.answers(ensemble.drop_class("c"))
    assert asked == []
    scores.answers(ensemble.add("a", "never read before"))
    assert asked == ["never read before"]


def test_some_images_alone_score_the_same():
    ensemble, scores = make_scores(True)
    weights = ensemble.prompts("b")
    some = np.array([3, 1, 59])
    expected = scores.mean_score(weights)[some]
    assert (scores.class_score(weights, some) == expected).all()
    assert (scores.class_score(weights)[some] == expected).all()
    assert (scores.class_score(weights, some) == expected).all()

"""Ensembles for tests: made by hypothesis, and one made by hand."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, settings

from promptboost.io import LARGEST_NUMBER
from promptboost.model import PromptEnsemble, Round

# Examples are quick, but a busy machine is no reason to fail.
PATIENT = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])

FINITE = st.floats(-LARGEST_NUMBER, LARGEST_NUMBER)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(str.strip)
WORD = st.sampled_from(["a", "red", "blue", "cat", "dog", "asleep", "on", "grass"])
PROMPT = st.lists(WORD, min_size=1, max_size=6).map(" ".join)
SCALAR = st.none() | st.booleans() | st.integers(-9, 9) | FINITE | TEXT


def banks(class_names, prompts=PROMPT):
    bank = st.dictionaries(prompts, st.integers(1, 40), min_size=1, max_size=4)
    return st.fixed_dictionaries(dict.fromkeys(class_names, bank))


@st.composite
def ensembles(draw, class_names=None, prompts=PROMPT, temperature=None):
    if class_names is None:
        class_names = draw(st.lists(TEXT, min_size=2, max_size=4, unique=True))
    rounds = st.builds(
        Round,
        TEXT,
        banks(class_names, prompts),
        FINITE,
        FINITE,
        st.just("greedy") | TEXT,
        st.none() | FINITE,
        st.none() | FINITE,
    )
    return draw(
        st.builds(
            PromptEnsemble,
            st.just(tuple(class_names)),
            st.lists(rounds, min_size=1, max_size=4).map(tuple),
            temperature=st.just(temperature) if temperature else st.floats(0.01, 10.0),
            encoder_id=st.none() | TEXT,
            encoder_fingerprint=st.none() | TEXT,
            pool_fingerprint=st.none() | st.just("pool"),
            settings=st.dictionaries(TEXT | st.just("rounds"), SCALAR, max_size=3),
            versions=st.dictionaries(TEXT, TEXT, max_size=2),
            history=st.lists(TEXT, max_size=2).map(tuple),
            logit_scale=st.none() | st.floats(0.01, 1000.0),
            encoder_logit_scale=st.none() | st.floats(0.01, 1000.0),
            sample_weights=st.dictionaries(st.text(max_size=5), FINITE, max_size=3),
        )
    )


def pets(**changes):
    """Three rounds of cat and dog."""
    rounds = (
        Round(
            "a {}.",
            {"cat": {"a cat.": 1, "a red cat": 3}, "dog": {"a dog.": 2, "a red dog": 1}},
            error=0.25,
            template_error=0.5,
        ),
        Round("a {}.", {"cat": {"a cat.": 2}, "dog": {"a dog.": 1}}, 0.3, 0.3),
        Round("my {}", {"cat": {"my cat": 1, "a red cat": 1}, "dog": {"my dog": 1}}, 0.1, 0.4),
    )
    fields = {
        "encoder_id": "fake:32-0",
        "settings": {"rounds": 3, "augment": True},
        "sample_weights": {"cat/1.png": 0.25, "dog/1.png": 0.75},
        "versions": {"promptboost": "0.1.0"},
    }
    return PromptEnsemble(("cat", "dog"), rounds, **(fields | changes))


def random_ensemble(rng, n_classes, n_rounds, **fields):
    """Give an ensemble over `t0`…`t39` and a mapping from these texts to random unit rows."""
    texts = [f"t{i}" for i in range(40)]
    names = tuple(f"class {k}" for k in range(n_classes))

    def bank():
        chosen = rng.choice(texts, size=rng.integers(1, 6), replace=False)
        return {str(text): int(rng.integers(1, 20)) for text in chosen}

    rounds = tuple(Round("{}", {name: bank() for name in names}, 0.1, 0.2) for _ in range(n_rounds))
    rows = rng.standard_normal((40, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return PromptEnsemble(names, rounds, **fields), dict(zip(texts, rows, strict=True))

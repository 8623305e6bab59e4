import numpy as np
import pytest

from promptboost.config import BoostConfig
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.fake import FakeEncoder
from promptboost.model import PromptEnsemble, Round
from promptboost.pool import build_pool
from promptboost.run.controls import (
    control_texts,
    described_classes,
    measure_controls,
    randomize_words,
    swap_descriptions,
)
from promptboost.training.examples import Examples

COLORS = {"fire": "red", "sea ice": "blue", "leaf": "green"}
SENTENCES = {
    name: [f"a {name} is {color} all over", f"something {color}"] for name, color in COLORS.items()
}


def task(sentences=SENTENCES, **options):
    pool = build_pool(
        list(COLORS), templates=["a photo of a {c}."], descriptions=sentences, **options
    )
    banks = {name: dict.fromkeys(pool.texts(name), 2) for name in pool.class_names}
    return pool, PromptEnsemble(pool.class_names, (Round("a photo of a {c}.", banks, 0.1, 0.3),))


def chosen(ensemble):
    return {name: ensemble.prompts(name) for name in ensemble.class_names}


@pytest.mark.parametrize("concatenate", ["none", "one"])
def test_controls_keep_class_names_and_templates_and_no_sentence(concatenate):
    pool, ensemble = task(concatenate=concatenate)
    classes = described_classes(chosen(ensemble), pool)
    swapped, random = swap_descriptions(classes), randomize_words(classes, pool)
    for new in (swapped, random):
        for name in COLORS:
            texts = [text for text in pool.texts(name) if text != f"a photo of a {name}."]
            assert set(new[name]) == set(texts)
            for before, after in new[name].items():
                assert after != before
                assert COLORS[name] not in after.split()
                assert before.count(name) == after.count(name)
                assert len(after.split()) == len(before.split()) or new is swapped
    assert (swap_descriptions(classes), randomize_words(classes, pool)) == (swapped, random)


def test_the_name_is_put_before_a_sentence_without_it():
    sentences = {name: [f"a {name} is {color}"] for name, color in COLORS.items()}
    sentences["leaf"] = ["something green"]
    pool, ensemble = task(sentences)
    swapped = swap_descriptions(described_classes(chosen(ensemble), pool))
    taker = next(name for name, new in swapped.items() if "something green" in str(new.values()))
    assert list(swapped[taker].values()) == [f"{taker}: something green"]


def test_descriptions_that_matter_beat_both_controls():
    encoder = FakeEncoder(64)
    pool, ensemble = task()
    rows = encoder.encode_texts(
        [f"{shade} {c}" for c in COLORS.values() for shade in ("dark", "pale")]
    )
    labels = np.repeat(np.arange(3), 2)
    embedder = Embedder(encoder, store=None)
    examples = Examples(rows, labels, tuple("abcdef"))
    controls = control_texts(ensemble, pool, examples, embedder, BoostConfig())
    result = measure_controls(ensemble, controls, embedder, rows, labels)
    assert result.text == 1.0
    assert result.gain > 0.1


def test_weights_of_controls_are_fitted_again():
    # The names of the classes are as good as the descriptions, which are worthless in other classes.
    encoder, names = FakeEncoder(64), ("red", "blue", "green")
    pool = build_pool(
        names, templates=["{c}"], descriptions={name: [f"dark {name}"] for name in names}
    )
    banks = {name: {f"dark {name}": 7, name: 1} for name in names}
    ensemble = PromptEnsemble(names, (Round("{c}", banks, 0.0, 0.0),))
    examples = Examples(encoder.encode_texts(names), np.arange(3), names)
    embedder = Embedder(encoder, store=None)
    config = BoostConfig(logit_scale=20.0, spread=0.0)
    swapped, random = control_texts(ensemble, pool, examples, embedder, config)
    for name in names:
        assert swapped.prompts(name)[name] > 1 / 2
        assert f"dark {name}" not in {*swapped.prompts(name), *random.prompts(name)}


def test_there_are_no_controls_without_descriptions_or_images():
    embedder = Embedder(FakeEncoder(64), store=None)
    rows = embedder.encode_texts([*COLORS.values()])
    for sentences, n in ((None, 3), (SENTENCES, 2)):
        pool, ensemble = task(sentences)
        examples = Examples(rows[:n], np.arange(n), tuple("abc")[:n])
        assert control_texts(ensemble, pool, examples, embedder, BoostConfig()) is None
    assert measure_controls(ensemble, None, embedder, rows, np.arange(3)) is None

import json

import numpy as np
import pytest

from promptboost import baselines
from promptboost.baselines import pool_heads
from promptboost.config import FitConfig
from promptboost.encoders.embedder import Embedder
from promptboost.errors import PoolError, SettingError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.base import RowImages
from promptboost.pool import build_pool, save_pool
from promptboost.run.fit import pool_for


def heads(settings=None, names=("owl", "bat")):
    pool = pool_for(settings or FitConfig(), "images", names)
    return pool_heads(pool, Embedder.open("fake:32-0", cache=False))


def test_emoji_bring_their_own_sentences_unless_others_are_given(tmp_path):
    emoji = pool_for(FitConfig(), "emoji", ["bird", "fruit"])
    assert len(emoji.texts("bird")) >= 56
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"bird": ["wings"], "fruit": ["sweet"]}))
    mine = pool_for(FitConfig(prompts=str(file)), "emoji", ["bird", "fruit"])
    assert mine.prompts("bird")[-1].source == "mine.json"
    assert len(mine.texts("bird")) == 17


def test_a_missing_sentence_file_is_an_error():
    with pytest.raises(PoolError, match=r"cannot read the descriptions none\.json"):
        pool_for(FitConfig(prompts="none.json"), "images", ["owl", "bat"])


def test_baselines_are_unit_rows_and_differ():
    found = {name: head.weights for name, head in heads().items()}
    for rows in found.values():
        assert rows.shape == (2, 32)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    # Without sentences the pool is the templates.
    np.testing.assert_allclose(found["template-mean"], found["pool-mean"], atol=1e-6)
    assert not np.allclose(found["zero-shot"], found["template-mean"])


@pytest.mark.parametrize("at_once", [7, 4096])
def test_means_are_those_of_the_methods_that_compare_fits(monkeypatch, at_once):
    monkeypatch.setattr(baselines, "_AT_ONCE", at_once)
    pool = build_pool(["owl", "bat"], descriptions={"owl": ["round eyes", "a beak"]})
    encoder = Embedder.open("fake:32-0", cache=False).encoder
    found = pool_heads(pool, Embedder(encoder))
    nothing = RowImages({encoder.id: np.zeros((0, 1, 32), np.float32)})
    shots = FewShotSet(nothing, np.zeros(0, np.int64), ("owl", "bat"))
    for name, head in found.items():
        rows = make_method(name).fit(shots, pool, encoder).rows
        # Rows are on the grid, which moves each entry by 2e-5 at most.
        np.testing.assert_allclose(head.weights, rows, atol=5e-5)


def test_zero_shot_is_the_plain_template_whatever_the_templates():
    encoder = Embedder.open("fake:32-0", cache=False).encoder
    expected = encoder.encode_texts(["a photo of an owl.", "a photo of a bat."])
    np.testing.assert_allclose(heads()["zero-shot"].weights, expected, atol=1e-7)


def test_any_format_will_do_and_prompts_know_their_source(tmp_path):
    file = tmp_path / "descriptors_birds.json"
    file.write_text(json.dumps({"Owl": ["round eyes"], "cow": ["horns"]}))
    settings = FitConfig(prompts=str(file), concatenate="one")
    pool = pool_for(settings, "images", ["owl", "bat"])
    sentence, joined = pool.prompts("owl")[-2:]
    assert (sentence.text, sentence.source) == ("owl, which has round eyes.", "dclip")
    assert (joined.source, joined.origin) == ("concat", "dclip")
    assert (pool.missing, pool.unused) == (("bat",), ("cow",))


@pytest.fixture
def saved(tmp_path):
    words = {"cupl": {"Owl": ["eyes"]}, "mine": {"Bat": ["wings"]}}
    pool = build_pool(["Owl", "Bat"], templates=["a {}."], descriptions=words, concatenate="all")
    save_pool(pool, tmp_path / "pool.jsonl")
    return str(tmp_path / "pool.jsonl")


def test_a_saved_pool_is_the_pool(saved):
    for source in ("images", "emoji"):
        pool = pool_for(FitConfig(prompts=saved), source, ["bat", "owl"])
        assert pool.texts("owl") == ["an Owl.", "eyes", "an Owl. eyes"]
        assert pool.templates == ("a {}.",)
        assert pool.prompts_by_source == {"template": 2, "mine": 1, "concat": 2, "cupl": 1}


@pytest.mark.parametrize("changes", [{"templates": "clip"}, {"concatenate": "one"}])
def test_a_saved_pool_leaves_nothing_open(saved, changes):
    settings = FitConfig(prompts=saved, **changes)
    (name,) = changes
    with pytest.raises(SettingError, match=rf"{name} is .* is a saved pool.*pool build .*--{name}"):
        pool_for(settings, "images", ["owl", "bat"])


def test_a_saved_pool_must_have_all_classes(saved):
    with pytest.raises(PoolError, match="no prompts for the class 'elk'; it has 'Owl', 'Bat'"):
        pool_for(FitConfig(prompts=saved), "images", ["owl", "bat", "elk"])

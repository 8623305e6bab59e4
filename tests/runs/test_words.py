import json

import numpy as np
import pytest

from promptboost.errors import PoolError
from promptboost.runs.embedding import Embedder
from promptboost.runs.settings import FitSettings
from promptboost.runs.words import Words, pool_for


def words(settings=None, names=("owl", "bat")):
    pool = pool_for(settings or FitSettings(), "pictures", names)
    return Words.embed(pool, Embedder.open("fake:32-0", cache=False, progress=False))


def test_emoji_bring_their_own_sentences_unless_others_are_given(tmp_path):
    emoji = pool_for(FitSettings(), "emoji", ["bird", "fruit"])
    assert len(emoji.texts("bird")) >= 120
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"bird": ["wings"], "fruit": ["sweet"]}))
    mine = pool_for(FitSettings(prompts=str(file)), "emoji", ["bird", "fruit"])
    assert mine.prompts("bird")[-1].source == "descriptions:mine.json"
    assert len(mine.texts("bird")) == 81


def test_a_missing_sentence_file_is_an_error():
    with pytest.raises(PoolError, match="cannot read the descriptions"):
        pool_for(FitSettings(prompts="none.json"), "pictures", ["owl", "bat"])


def test_baselines_are_unit_rows_and_differ():
    found = words()
    for rows in (found.zero_shot(), found.template_mean(), found.pool_mean()):
        assert rows.shape == (2, 32)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    # Without sentences the pool is the templates.
    np.testing.assert_allclose(found.template_mean(), found.pool_mean(), atol=1e-6)
    assert not np.allclose(found.zero_shot(), found.template_mean())


def test_zero_shot_is_the_plain_template_whatever_the_templates():
    found = words()
    encoder = Embedder.open("fake:32-0", cache=False).encoder
    expected = encoder.encode_texts(["a photo of an owl.", "a photo of a bat."])
    np.testing.assert_array_equal(found.zero_shot(), expected)

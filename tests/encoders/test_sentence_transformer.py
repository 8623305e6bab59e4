"""st: encoders embed as sentence-transformers does."""

import json
import warnings

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs the extra st")

from PIL import Image

from promptboost.encoders import Encoder, load_encoder
from promptboost.encoders.base import TruncatedPromptWarning
from promptboost.errors import EncoderError
from promptboost.testing import check_encoder
from tests.encoders.test_huggingface import TEXTS, pictures
from tests.encoders.tiny_checkpoints import save_sentence_transformer, save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_sentence_transformer(tmp_path_factory.mktemp("st"))


@pytest.fixture(scope="module")
def encoder(folder):
    return load_encoder(f"st:{folder}", device="cpu")


def test_an_encoder_is_what_the_protocol_says(encoder):
    assert isinstance(encoder, Encoder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedPromptWarning)  # a token is a letter
        assert check_encoder(encoder) == []
    assert encoder.logit_scale == pytest.approx(np.exp(4.0))


def test_texts_and_images_are_embedded_as_by_encode(encoder, folder):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    for rows, inputs in (
        (encoder.encode_texts(TEXTS), TEXTS),
        (encoder.encode_images(iter(pictures())), pictures()),
    ):
        expected = model.encode(inputs, normalize_embeddings=True)
        np.testing.assert_allclose(rows, expected, atol=1e-5)
    gray = Image.new("L", (32, 32), 128)
    rows = encoder.encode_images([gray, gray.convert("RGB")])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


def test_a_text_longer_than_the_context_is_reported(encoder):
    assert encoder.context_length == 77
    assert encoder.count_tokens(["r" * 75, "r" * 76, ""]).tolist() == [77, 78, 2]
    with pytest.warns(TruncatedPromptWarning, match="1 of 2 texts"):
        encoder.encode_texts(["r" * 75, "r" * 76])


def test_siglip_is_left_to_hf(tmp_path):
    """sentence-transformers pads texts to the longest, and masks the padding."""
    folder = save_sentence_transformer(tmp_path, "siglip")
    with pytest.raises(EncoderError, match=r"SigLIP model.*Use hf:"):
        load_encoder(f"st:{folder}", device="cpu")


def test_a_model_of_texts_alone_is_refused(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    save_tiny("clip", tmp_path / "clip")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tmp_path / "clip" / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)]).save(
        str(tmp_path / "static")
    )
    with pytest.raises(EncoderError, match="does not embed both images and texts"):
        load_encoder(f"st:{tmp_path / 'static'}", device="cpu")


def test_code_that_a_model_names_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "strange_part.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Part: pass"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = {"idx": 0, "name": "0", "path": "", "type": "strange_part.Part"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    (tmp_path / "config_sentence_transformers.json").write_text("{}")
    with pytest.raises(EncoderError, match="Cannot load st:"):
        load_encoder(f"st:{tmp_path}", device="cpu")
    assert not (tmp_path / "ran").exists()

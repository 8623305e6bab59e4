import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra clip")

from promptboost.encoders import load_encoder  # noqa: E402
from promptboost.encoders.base import open_tower  # noqa: E402
from promptboost.methods.learned_tokens import PromptedClasses, nearest  # noqa: E402
from tests.encoders.openclip.tiny_models import TINY, TINY_BOTH_WAYS, save_tiny_models  # noqa: E402
from tests.methods.gradient_tools import real  # noqa: E402

NAMES = ["basset_hound", "pug", "Egyptian mau", "pug"]
TEXTS = [f"a photo of the {name}." for name in ("basset hound", "pug", "egyptian mau", "pug")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    pytest.importorskip("open_clip", reason="needs the extra clip")
    return save_tiny_models(tmp_path_factory.mktemp("tiny"))


def load(name, files):
    if name in files:
        return load_encoder(f"{name}@{files[name]}", device="cpu")
    return real(name)


@pytest.mark.parametrize("name", [TINY, TINY_BOTH_WAYS, "conse:lite0", "fake:16-0"])
def test_words_in_the_place_of_learned_tokens_are_read_as_text(name, files):
    encoder = load(name, files)
    tower = open_tower(encoder)
    tokens = tower.tokenize("a photo of the")
    classes = PromptedClasses.of(tower, NAMES, len(tokens))
    rows = classes.rows(tower.vocabulary[tokens])
    np.testing.assert_allclose(rows, encoder.encode_texts(TEXTS), atol=2e-6)
    assert len(classes.endings) == 3


def test_the_nearest_row_has_the_highest_cosine():
    vocabulary = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    positions = nearest(torch.tensor([[0.1, 0.01], [50.0, 60.0], [-1.0, 2.0]]), vocabulary)
    assert positions.tolist() == [0, 1, 2]

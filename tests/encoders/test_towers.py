import json
import subprocess
import sys

import numpy as np
import pytest

open_clip = pytest.importorskip("open_clip", reason="needs the extra clip")
torch = pytest.importorskip("torch", reason="needs the extra clip")

from promptboost.encoders import load_encoder  # noqa: E402
from promptboost.encoders.base import encode_with, open_tower  # noqa: E402
from promptboost.encoders.embedder import Embedder  # noqa: E402
from promptboost.encoders.fake import FakeEncoder  # noqa: E402
from promptboost.encoders.openclip.tower import OpenClipTower  # noqa: E402
from promptboost.encoders.store import EmbeddingStore  # noqa: E402
from promptboost.errors import EncoderError, MissingExtraError  # noqa: E402
from tests.encoders.openclip.tiny_models import (  # noqa: E402
    TEXT_TOWER,
    TINY,
    TINY_BOTH_WAYS,
    TINY_CUSTOM,
    TINY_QUICK,
    save_tiny_models,
)

TEXTS = [
    "a bird",
    "a photo of a small brown bird, sitting.",
    "",
    "red-and-blue noisy parrot",
    "the ship",
]
CAUSAL = [TINY, TINY_QUICK, TINY_CUSTOM]
REAL = ["conse:lite0", "conse:lite2-l6"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return save_tiny_models(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def load(files):
    def load(name):
        if name.startswith(("conse:", "fake:")):
            try:
                return load_encoder(name, device="cpu")
            except MissingExtraError as missing:
                pytest.skip(str(missing))
        return load_encoder(f"{name}@{files[name]}", device="cpu")

    return load


def embedded(tower, text):
    """Start, own and end tokens of a text, looked up."""
    return tower.vocabulary[[*tower.start, *tower.tokenize(text), *tower.end]]


@pytest.mark.parametrize("name", [*CAUSAL, TINY_BOTH_WAYS, *REAL, "fake:16-0"])
def test_a_tower_gives_the_rows_of_its_encoder(load, name):
    encoder = load(name)
    rows = encode_with(open_tower(encoder), TEXTS)
    assert rows.dtype == torch.float32
    np.testing.assert_allclose(rows, encoder.encode_texts(TEXTS), atol=2e-6)


@pytest.mark.parametrize("name", [TINY, "conse:lite0"])
def test_it_does_not_matter_where_the_beginning_ends(load, name):
    encoder = load(name)
    tower = open_tower(encoder)
    tokens = embedded(tower, "a photo of a bird")
    expected = encoder.encode_texts(["a photo of a bird"])
    for cut in range(len(tower.start), len(tokens) - 1):
        own = tokens[None, cut:]
        padded = torch.cat([own, torch.full_like(own, 7.0)], dim=1)
        rows = tower.encode(tokens[:cut], padded, torch.tensor([own.shape[1]]))
        np.testing.assert_allclose(rows, expected, atol=2e-6)


@pytest.mark.parametrize("count", [63, 64, 65, 130])
def test_any_number_of_texts_can_be_read_together(load, count):
    encoder = load(TINY)
    texts = [f"{'very ' * (number % 4)}old bird number {number}" for number in range(count)]
    rows = encode_with(open_tower(encoder), texts)
    np.testing.assert_allclose(rows, encoder.encode_texts(texts), atol=2e-6)


def test_a_causal_tower_computes_a_shared_beginning_once(load):
    tower = open_tower(load(TINY))
    seen = []
    hook = tower._tower.transformer.register_forward_hook(
        lambda module, inputs, outputs: seen.append(inputs[0].shape[:2].numel())
    )
    endings = tower.vocabulary[torch.tensor([[5, *tower.end], [6, *tower.end], [7, *tower.end]])]
    tower.encode(tower.vocabulary[:17], endings, torch.full((3,), 2))
    hook.remove()
    assert seen == [17 + 3 * 2]


@pytest.mark.parametrize("name", [TINY, TINY_BOTH_WAYS, "conse:lite0", "fake:16-0"])
def test_gradients_are_those_of_finite_differences(load, name):
    tower = open_tower(load(name))
    torch.manual_seed(0)
    learned = tower.vocabulary[torch.tensor([3, 8])] + 0.02 * torch.randn(
        2, tower.vocabulary.shape[1]
    )
    learned.requires_grad_()
    ids = [[*tower.tokenize(word), *tower.end] for word in ("bird", "ship")]
    width = min(map(len, ids))
    endings = tower.vocabulary[torch.tensor([row[-width:] for row in ids])]
    lengths = torch.full((2,), width)
    start = tower.vocabulary[list(tower.start)]
    aim = torch.randn(2, tower.encode(start, endings, lengths).shape[1])

    def value(vectors):
        return (tower.encode(torch.cat([start, vectors]), endings, lengths) * aim).sum()

    (slope,) = torch.autograd.grad(value(learned), learned)
    for _ in range(3):
        direction = torch.randn_like(learned) * learned.detach().std() * 0.02
        with torch.no_grad():
            change = (value(learned + direction) - value(learned - direction)) / 2
        assert float(change) == pytest.approx(float((slope * direction).sum()), rel=0.02, abs=1e-4)
    assert slope.abs().max() > 1e-3


@pytest.mark.parametrize("name", [TINY, "conse:lite0", "fake:16-0"])
def test_weights_and_vocabulary_are_frozen(load, name):
    tower = open_tower(load(name))
    assert not tower.vocabulary.requires_grad
    assert not encode_with(tower, ["a bird"]).requires_grad


@pytest.mark.parametrize("name", [TINY, "conse:lite0", "fake:16-0"])
def test_text_goes_to_tokens_and_back(load, name):
    tower = open_tower(load(name))
    text = "a photo of the small brown lighthouse"
    tokens = tower.tokenize(text)
    assert tower.decode(tokens) == text
    assert not {*tower.start, *tower.end} & set(tokens)


@pytest.mark.parametrize("name", [TINY, "conse:lite0", "fake:16-0"])
def test_allowed_tokens_are_text(load, name):
    tower = open_tower(load(name))
    allowed = tower.allowed.tolist()
    assert len(set(allowed)) == len(allowed)
    assert not {*tower.start, *tower.end} & set(allowed)
    assert set(tower.tokenize("a photo of a fish")) <= set(allowed)
    texts = [tower.decode([token]) for token in allowed]
    assert all(text.strip() and text.isprintable() and "\ufffd" not in text for text in texts)
    assert max(allowed) < len(tower.vocabulary)


def test_word_pieces_are_joined_and_unused_tokens_left_out(load):
    tower = open_tower(load("conse:lite0"))
    number = tower._tokenizer.token_to_id
    pieces = [number("play"), number("##ful"), number("fish")]
    assert tower.decode(pieces) == "playful fish"
    assert tower.decode([number("##ful"), number("fish")]) == "ful fish"
    allowed = set(tower.allowed.tolist())
    assert {number("play"), number("##ful"), number(".")} <= allowed
    assert not allowed & {number(t) for t in ("[PAD]", "[UNK]", "[MASK]", "[unused7]")}


def test_a_tower_behind_a_store_is_found(tmp_path):
    encoder = FakeEncoder(dim=8)
    tower = open_tower(Embedder(encoder, EmbeddingStore(tmp_path)))
    np.testing.assert_allclose(encode_with(tower, TEXTS), encoder.encode_texts(TEXTS), atol=1e-6)


def test_an_onnx_tower_is_refused_with_one_that_works(load):
    with pytest.raises(
        EncoderError, match=r"conse:lite2: .* ONNX .* conse:lite0, or conse:lite2-l6"
    ):
        open_tower(load("conse:lite2"))


class WithoutTower:
    id = "mine"


class Lying(FakeEncoder):
    """Its tower reads another text than the encoder does."""

    def text_tower(self):
        return FakeEncoder(dim=self.dim, seed=self.seed + 1).text_tower()


def test_an_encoder_without_a_tower_is_refused():
    with pytest.raises(EncoderError, match=r"mine: it has no differentiable .* conse:lite0"):
        open_tower(WithoutTower())


def test_a_tower_that_reads_otherwise_than_its_encoder_is_refused():
    with pytest.raises(EncoderError, match="fake:8-0 reads texts in a way"):
        open_tower(Lying(dim=8))


@pytest.mark.parametrize("difference", [{"no_causal_mask": True}, {"pool_type": "last"}])
def test_other_ways_to_read_are_padded_as_the_model_pads(files, difference):
    torch.manual_seed(0)
    model = open_clip.create_model(TINY_CUSTOM, text_cfg={**TEXT_TOWER, **difference}).eval()
    tokenizer = open_clip.get_tokenizer(TINY_CUSTOM)
    with torch.no_grad():
        rows = encode_with(OpenClipTower(model, tokenizer, "tiny"), TEXTS)
        expected = model.encode_text(tokenizer(TEXTS), normalize=True)
    np.testing.assert_allclose(rows, expected, atol=2e-6)


def test_a_class_token_after_the_padding_is_refused(files):
    model = open_clip.create_model(TINY_CUSTOM, text_cfg={**TEXT_TOWER, "embed_cls": True})
    with pytest.raises(EncoderError, match="coca: its text tower is not one of"):
        OpenClipTower(model, open_clip.get_tokenizer(TINY_CUSTOM), "coca")


def test_a_hugging_face_tokenizer_is_read_as_the_model_reads_it(files, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    known = ["<pad>", "</s>", "<unk>", "a", "photo", "of", "the", "cat", ".", "old", "lighthouse"]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(tmp_path / "words")
    config = json.loads((files[TINY_BOTH_WAYS].parent / f"{TINY_BOTH_WAYS}.json").read_text())
    config["text_cfg"]["hf_tokenizer_name"] = str(tmp_path / "words")
    (tmp_path / "tiny-siglip.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "tiny-siglip.json")
    encoder = load_encoder(f"tiny-siglip@{files[TINY_BOTH_WAYS]}", device="cpu")
    tower = open_tower(encoder)
    assert (tower.start, tower.end) == ((), (1,))
    assert tower.allowed.tolist() == list(range(3, len(known)))
    texts = ["a cat.", "the old lighthouse", ""]
    np.testing.assert_allclose(encode_with(tower, texts), encoder.encode_texts(texts), atol=2e-6)


def test_nothing_heavy_is_imported_before_a_tower_is_opened():
    code = (
        "import sys, promptboost.encoders, promptboost.methods.learned_tokens;"
        "print([m for m in ('torch', 'open_clip', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

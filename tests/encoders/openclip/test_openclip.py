import json
import os
import warnings

import numpy as np
import pytest

open_clip = pytest.importorskip("open_clip", reason="needs the extra clip")
torch = pytest.importorskip("torch", reason="needs the extra clip")

from PIL import Image  # noqa: E402

from promptboost.encoders import Encoder, load_encoder  # noqa: E402
from promptboost.encoders.base import HALF_TOLERANCE, TruncatedPromptWarning  # noqa: E402
from promptboost.encoders.openclip.openclip import (  # noqa: E402
    OpenClipEncoder,
    UnknownActivationWarning,
)
from promptboost.encoders.openclip.tower import TextTower  # noqa: E402
from promptboost.errors import EncoderError  # noqa: E402
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
    "a photo of a small brown bird sitting on the branch of an old apple tree in the garden.",
    "",
    "an extremely long-tailed, red-and-blue, noisy parrot",
    "a ship",
]
PICTURES = [
    Image.new("RGB", (50, 40), "red"),
    Image.fromarray(np.arange(60 * 40 * 3, dtype=np.uint8).reshape(60, 40, 3)),
    Image.new("L", (9, 90), 128),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return save_tiny_models(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def load(files):
    return lambda name, **options: load_encoder(f"{name}@{files[name]}", device="cpu", **options)


def padded(encoder, texts):
    tokens = encoder.tokenizer(list(texts))
    with torch.inference_mode():
        return encoder.model.encode_text(tokens, normalize=True).numpy()


def assert_unit_rows(rows, count, dim=32):
    assert rows.shape == (count, dim)
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("name", [TINY, TINY_QUICK, TINY_CUSTOM, TINY_BOTH_WAYS])
def test_an_encoder_is_what_the_protocol_says(load, name):
    encoder = load(name)
    assert isinstance(encoder, Encoder)
    assert not encoder.model.training
    assert encoder.dim == 32
    assert encoder.logit_scale == pytest.approx(1 / 0.07, rel=1e-5)
    assert_unit_rows(encoder.encode_texts(TEXTS[:1]), 1)
    assert_unit_rows(encoder.encode_images(iter(PICTURES[:2])), 2)
    assert_unit_rows(encoder.encode_texts([]), 0)
    assert_unit_rows(encoder.encode_images([]), 0)


def test_images_go_through_the_model_and_its_own_preprocessing(load):
    encoder = load(TINY, batch_size=2)
    model, _, preprocess = open_clip.create_model_and_transforms(
        TINY, pretrained=encoder.id.split("@")[1]
    )
    with torch.inference_mode():
        inputs = torch.stack([preprocess(image) for image in PICTURES])
        expected = model.eval().encode_image(inputs, normalize=True).numpy()
    np.testing.assert_allclose(encoder.encode_images(PICTURES), expected, atol=1e-6)


@pytest.mark.parametrize("name", [TINY, TINY_QUICK, TINY_CUSTOM])
def test_buckets_give_the_rows_of_the_padded_run(load, name):
    encoder = load(name, batch_size=2)
    assert encoder.causal_text
    assert encoder.trims
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), padded(encoder, TEXTS), atol=1e-5)


def test_buckets_compute_only_the_tokens_there_are(load):
    encoder = load(TINY)
    widths = []
    encoder.model.transformer.register_forward_hook(
        lambda module, inputs, outputs: widths.append(inputs[0].shape[1])
    )
    encoder.encode_texts(["a bird", "a ship"])
    assert widths == [4]


@pytest.mark.parametrize("name", [TINY_BOTH_WAYS])
def test_a_tower_that_attends_to_padding_is_left_alone(load, name):
    encoder = load(name)
    assert not encoder.causal_text
    assert not encoder.trims
    short = ["a bird", "a ship"]
    np.testing.assert_allclose(encoder.encode_texts(short), padded(encoder, short), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        (TINY, {"no_causal_mask": True}),
        (TINY, {"pool_type": "last"}),
        (TINY_CUSTOM, {"no_causal_mask": True}),
        (TINY_CUSTOM, {"pool_type": "last"}),
        (TINY_CUSTOM, {"embed_cls": True}),  # a class token after the padding, as in CoCa
    ],
)
def test_each_way_to_see_the_padding_makes_a_tower_not_causal(files, name, difference):
    model = open_clip.create_model(name, text_cfg={**TEXT_TOWER, **difference})
    assert not TextTower(model).is_causal


def test_a_tower_that_trims_wrongly_is_run_padded(load, monkeypatch):
    # Off by one: the end token is cut off.
    right = TextTower.lengths
    monkeypatch.setattr(TextTower, "lengths", lambda self, tokens: right(self, tokens) - 1)
    encoder = load(TINY)
    monkeypatch.undo()
    assert not encoder.trims
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), padded(encoder, TEXTS), atol=1e-6)


@pytest.mark.parametrize("name", [TINY, TINY_BOTH_WAYS])
def test_a_text_longer_than_the_context_is_reported(load, name):
    encoder = load(name)
    long = "red " * 200
    message = (
        rf"1 of 2 texts is longer than the {encoder.context_length} tokens .* number 2 has 202"
    )
    with pytest.warns(TruncatedPromptWarning, match=message):
        rows = encoder.encode_texts(["a bird", long])
    np.testing.assert_allclose(rows, padded(encoder, ["a bird", long]), atol=1e-5)


@pytest.mark.parametrize("name", [TINY, TINY_BOTH_WAYS])
def test_a_text_that_just_fits_is_not_reported(load, name):
    encoder = load(name)
    fits = "red " * (encoder.context_length - 2)
    assert encoder.count_tokens([fits, "a bird", "", fits + "red"]).tolist() == [
        encoder.context_length,
        4,
        2,
        encoder.context_length + 1,
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode_texts([fits])
    with pytest.warns(TruncatedPromptWarning):
        encoder.encode_texts([fits + "red"])


def test_a_hugging_face_tokenizer_counts_before_truncation(files, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "bird": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    )
    fast.save_pretrained(tmp_path / "words")
    config = json.loads((files[TINY_BOTH_WAYS].parent / f"{TINY_BOTH_WAYS}.json").read_text())
    config["text_cfg"]["hf_tokenizer_name"] = str(tmp_path / "words")
    (tmp_path / "tiny-words.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "tiny-words.json")
    encoder = load_encoder(f"tiny-words@{files[TINY_BOTH_WAYS]}", device="cpu")
    assert encoder.count_tokens(["bird", "bird " * 40]).tolist() == [1, 40]
    with pytest.warns(TruncatedPromptWarning, match="number 2 has 40"):
        encoder.encode_texts(["bird", "bird " * 40])


def activations(encoder):
    return {type(block.mlp.gelu).__name__ for block in encoder.model.transformer.resblocks}


def published_as(monkeypatch, files, tag, **settings):
    from open_clip import pretrained

    weights = {**pretrained._pcfg(), "file": str(files[TINY]), **settings}
    known = pretrained._PRETRAINED.get(TINY, {})
    monkeypatch.setitem(pretrained._PRETRAINED, TINY, {**known, tag: weights})


def test_published_weights_that_need_quick_gelu_get_it(monkeypatch, files):
    published_as(monkeypatch, files, "quick", quick_gelu=True)
    published_as(monkeypatch, files, "plain")
    quick = load_encoder(f"{TINY}/quick", device="cpu")  # and without a warning of open_clip's
    plain = load_encoder(f"{TINY}/plain", device="cpu")
    assert activations(quick) == {"QuickGELU"}
    assert activations(plain) == {"GELU"}
    assert quick.fingerprint != plain.fingerprint
    assert np.abs(quick.encode_texts(TEXTS) - plain.encode_texts(TEXTS)).max() > 1e-4


def test_a_file_whose_kind_always_needs_quick_gelu_gets_it(monkeypatch, files, load):
    published_as(monkeypatch, files, "quick", quick_gelu=True)
    assert activations(load(TINY)) == {"QuickGELU"}


def test_a_file_that_may_need_quick_gelu_is_not_run_in_silence(monkeypatch, files, load):
    published_as(monkeypatch, files, "quick", quick_gelu=True)
    published_as(monkeypatch, files, "plain")
    with pytest.warns(UnknownActivationWarning, match=f"type {TINY}-quickgelu@"):
        assert activations(load(TINY)) == {"GELU"}


def test_a_file_says_beside_it_what_it_needs(monkeypatch, files, tmp_path):
    published_as(monkeypatch, files, "quick", quick_gelu=True)
    published_as(monkeypatch, files, "plain")
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(files[TINY].read_bytes())
    beside = {"model_cfg": {"quick_gelu": True}, "preprocess_cfg": {"mean": [0.5, 0.5, 0.5]}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(beside))
    encoder = load_encoder(f"{TINY}@{weights}", device="cpu")
    assert activations(encoder) == {"QuickGELU"}
    assert encoder.model.visual.preprocess_cfg["mean"] == [0.5, 0.5, 0.5]


def test_a_file_is_preprocessed_as_its_published_kin(monkeypatch, files, load):
    plain = load(TINY)
    published_as(monkeypatch, files, "one", mean=(0.5, 0.5, 0.5), resize_mode="squash")
    published_as(monkeypatch, files, "two", mean=(0.5, 0.5, 0.5), resize_mode="longest")
    kin = load(TINY)
    assert kin.model.visual.preprocess_cfg["mean"] == (0.5, 0.5, 0.5)
    assert kin.model.visual.preprocess_cfg["resize_mode"] == "shortest"  # they disagree
    assert kin.fingerprint != plain.fingerprint


def test_the_quickgelu_architecture_is_for_files_that_need_it(files):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = load_encoder(f"{TINY_QUICK}@{files[TINY]}", device="cpu")
    assert activations(encoder) == {"QuickGELU"}


def test_the_fingerprint_is_of_the_weights_and_not_of_the_file(files, load, tmp_path):
    from safetensors.torch import load_file

    original = load(TINY)
    weights = load_file(files[TINY])
    torch.save(weights, tmp_path / "same.pt")
    weights["ln_final.bias"] = weights["ln_final.bias"] + 1e-6
    torch.save(weights, tmp_path / "other.pt")
    same = load_encoder(f"{TINY}@{tmp_path}/same.pt", device="cpu")
    other = load_encoder(f"{TINY}@{tmp_path}/other.pt", device="cpu")
    assert same.fingerprint == original.fingerprint
    assert other.fingerprint != original.fingerprint
    assert (same.encode_texts(TEXTS) == original.encode_texts(TEXTS)).all()


def test_an_id_loads_the_same_encoder_again(load):
    encoder = load(TINY)
    assert load_encoder(encoder.id, device="cpu").fingerprint == encoder.fingerprint


def test_a_checkpoint_of_another_architecture_is_refused(files):
    with pytest.raises(EncoderError, match=f"Is .* a checkpoint of {TINY_CUSTOM}"):
        load_encoder(f"{TINY_CUSTOM}@{files[TINY_BOTH_WAYS]}", device="cpu")


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_a_file_that_would_run_code_is_refused_and_runs_none(files, tmp_path):
    torch.save({"model": RunsCode(str(tmp_path / "ran"))}, tmp_path / "pickle.pt")
    with pytest.raises(EncoderError, match="nothing but tensors"):
        load_encoder(f"{TINY}@{tmp_path}/pickle.pt", device="cpu")
    assert not (tmp_path / "ran").exists()


def test_a_hub_that_cannot_be_reached_is_named_with_a_way_out(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in ("ViT-B-32/openai", "hf-hub:some-organization/some-model"):
        with pytest.raises(EncoderError, match=f"Cannot load {name}: .*ARCHITECTURE@FILE"):
            load_encoder(name, device="cpu")


def test_the_device_is_the_one_asked_for(load):
    assert load(TINY).device == torch.device("cpu")
    assert next(load(TINY).model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_a_device_that_is_not_there_is_refused(files, device):
    with pytest.raises(EncoderError, match=f"There is no device '{device}' here.*cpu"):
        load_encoder(f"{TINY}@{files[TINY]}", device=device)


@pytest.mark.parametrize("name", [TINY, TINY_CUSTOM])
def test_half_precision_gives_nearly_the_same_rows(files, load, name):
    model, preprocess = open_clip.create_model_from_pretrained(
        name, pretrained=str(files[name]), precision="fp16"
    )
    single = load(name)
    half = OpenClipEncoder(
        model.eval(),
        preprocess,
        open_clip.get_tokenizer(name),
        id=name,
        fingerprint="half",
        precision="fp16",
    )
    assert half.trims
    for rows, expected in (
        (half.encode_texts(TEXTS), single.encode_texts(TEXTS)),
        (half.encode_images(PICTURES), single.encode_images(PICTURES)),
    ):
        assert_unit_rows(rows, len(expected))
        np.testing.assert_allclose(rows, expected, atol=1e-2)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_precision_is_a_part_of_the_name(load, files, precision):
    single, half = load(TINY), load(TINY, precision=precision)
    assert half.id == f"{TINY}@{files[TINY]}?precision={precision}"
    assert half.fingerprint != single.fingerprint
    again = load_encoder(half.id, device="cpu")
    assert (again.id, again.fingerprint) == (half.id, half.fingerprint)
    assert half.model.visual.conv1.weight.dtype != torch.float32
    for rows, expected in (
        (again.encode_texts(TEXTS), single.encode_texts(TEXTS)),
        (again.encode_images(PICTURES), single.encode_images(PICTURES)),
    ):
        assert_unit_rows(rows, len(expected))
        np.testing.assert_allclose(rows, expected, atol=HALF_TOLERANCE[precision] * 2)
    # It is the usual one here, so nothing has to be computed again.
    assert load(TINY, precision="fp32").fingerprint == single.fingerprint


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_runs_in_half_precision_with_nearly_the_same_rows(files, load):
    encoder = load_encoder(f"{TINY}@{files[TINY]}")
    assert encoder.device.type == "cuda"
    assert encoder.encode_texts(TEXTS) == pytest.approx(load(TINY).encode_texts(TEXTS), abs=1e-2)

"""hf: encoders embed as transformers does, or as the models were trained where it does not."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra hf")
transformers = pytest.importorskip("transformers", reason="needs the extra hf")

from PIL import Image  # noqa: E402

from promptboost.encoders import Encoder, load_encoder  # noqa: E402
from promptboost.encoders.base import TruncatedPromptWarning  # noqa: E402
from promptboost.errors import EncoderError, SettingError  # noqa: E402
from promptboost.run.export import agreement  # noqa: E402
from promptboost.testing import check_encoder  # noqa: E402
from tests.encoders.tiny_checkpoints import FAMILIES, SIDE, save_tiny  # noqa: E402

TEXTS = ["a bird", "a photo of a small brown bird, sitting.", "the Ship"]
SIGLIP = ("siglip", "siglip2", "naflex")


def pictures(count=4):
    rng = np.random.default_rng(0)
    sides = rng.integers(20, 90, size=(count, 2))
    return [Image.fromarray(rng.integers(0, 256, (*side, 3), dtype=np.uint8)) for side in sides]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("transformers")
    return {family: save_tiny(family, folder / family) for family in FAMILIES}


@pytest.fixture(scope="module")
def encoders(folders):
    return {
        family: load_encoder(f"hf:{folder}", device="cpu") for family, folder in folders.items()
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_is_what_the_protocol_says(encoders, family):
    encoder = encoders[family]
    assert isinstance(encoder, Encoder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedPromptWarning)  # a token is a letter
        assert check_encoder(encoder) == []
    assert encoder.encode_texts([]).shape == encoder.encode_images([]).shape == (0, encoder.dim)


@pytest.mark.parametrize("family", ["clip", "metaclip2", "siglip"])
def test_scores_are_those_of_the_pipeline(encoders, folders, family):
    """With the scale, with SigLIP's bias, and with what its tokenizer says of padding."""
    labels = [text.lower() for text in TEXTS]  # the pipeline does not do it for SigLIP
    pipeline = transformers.pipeline(
        "zero-shot-image-classification", model=str(folders[family]), device="cpu"
    )
    encoder = encoders[family]
    rows = encoder.encode_texts(labels)
    for image in pictures():
        scored = pipeline(image, candidate_labels=labels, hypothesis_template="{}")
        expected = {entry["label"]: entry["score"] for entry in scored}
        logits = encoder.logit_scale * encoder.encode_images([image]) @ rows.T + encoder.logit_bias
        scores = torch.from_numpy(logits)
        scores = scores.sigmoid() if family == "siglip" else scores.softmax(dim=1)
        np.testing.assert_allclose(
            scores[0].numpy(), [expected[label] for label in labels], rtol=1e-3, atol=1e-6
        )


def siglip_rows(folder, texts, **options):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    read = tokenizer(texts, return_tensors="pt", return_attention_mask=True, **options)
    mask = read["attention_mask"] if options["padding"] is True else None
    with torch.inference_mode():
        rows = model.get_text_features(read["input_ids"], attention_mask=mask).pooler_output
    return torch.nn.functional.normalize(rows, dim=1).numpy()


@pytest.mark.parametrize("family", SIGLIP)
def test_siglip_pads_to_64_tokens_and_attends_to_them(encoders, folders, family):
    lower = [text.lower() for text in TEXTS]
    expected = siglip_rows(folders[family], lower, padding="max_length", max_length=64)
    np.testing.assert_allclose(encoders[family].encode_texts(TEXTS), expected, atol=1e-5)
    masked = siglip_rows(folders[family], lower, padding=True)
    assert np.einsum("nd,nd->n", masked, expected).min() < 0.99


@pytest.mark.parametrize("family", FAMILIES)
def test_siglip_reads_lower_case_and_metaclip_2_does_not(encoders, family):
    upper, lower = encoders[family].encode_texts(["A Red BIRD", "a red bird"])
    # CLIP's own tokenizer makes it lower case.
    assert np.allclose(upper, lower) is (family != "metaclip2")


def test_a_context_of_32_tokens_is_kept_with_its_end_token(tmp_path):
    """The tokenizer still says 77."""
    folder = save_tiny("clip", tmp_path, context=32)
    encoder = load_encoder(f"hf:{folder}", device="cpu")
    assert encoder.context_length == 32
    long = "r" * 50
    with pytest.warns(TruncatedPromptWarning, match=r"the 32 tokens .* number 1 has 52"):
        rows = encoder.encode_texts([long])
    tokens = [*encoder.tokenizer("r" * 49).input_ids[:31], encoder.tokenizer.eos_token_id]
    with torch.inference_mode():
        expected = encoder.model.get_text_features(torch.tensor([tokens])).pooler_output
    expected = torch.nn.functional.normalize(expected, dim=1).numpy()
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode_texts(["r" * 30])


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_left_out_only_where_it_does_not_matter(encoders, family):
    assert encoders[family].trims is (family not in SIGLIP)


@pytest.mark.parametrize("family", FAMILIES)
def test_images_go_through_the_processor_of_the_model(encoders, folders, family):
    processor = transformers.AutoImageProcessor.from_pretrained(folders[family])
    inputs = processor(images=pictures(), return_tensors="pt")
    with torch.inference_mode():
        rows = encoders[family].model.get_image_features(**inputs).pooler_output
    expected = torch.nn.functional.normalize(rows, dim=1).numpy()
    np.testing.assert_allclose(encoders[family].encode_images(pictures()), expected, atol=1e-5)


def test_images_of_other_modes_are_converted(encoders):
    gray = Image.new("L", (SIDE, SIDE), 128)
    rows = encoders["clip"].encode_images([gray, gray.convert("RGB")])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


def test_pickled_weights_are_not_read(folders, tmp_path):
    model = transformers.AutoModel.from_pretrained(folders["clip"])
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folders["clip"] / name).read_bytes())
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(EncoderError, match=r"Cannot load hf:.*safetensors"):
        load_encoder(f"hf:{tmp_path}")


def test_code_of_a_repository_is_not_run(tmp_path):
    mark = tmp_path / "ran"
    (tmp_path / "config.json").write_text(
        '{"model_type": "strange", "auto_map": {"AutoModel": "code.Model", "AutoConfig": "code.C"}}'
    )
    (tmp_path / "code.py").write_text(f"open({str(mark)!r}, 'w')\nclass C: pass\nclass Model: pass")
    with pytest.raises(EncoderError, match="Cannot load hf:"):
        load_encoder(f"hf:{tmp_path}")
    assert not mark.exists()


def test_a_model_of_texts_alone_is_refused(tmp_path, folders):
    config = transformers.BertConfig(
        vocab_size=128, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folders["metaclip2"] / name).read_bytes())
    with pytest.raises(EncoderError, match="BertModel without image and text features"):
        load_encoder(f"hf:{tmp_path}")


@pytest.mark.parametrize("name", ["hf:no folder", "st:a/b/c", "onnx:nothing"])
def test_a_name_that_is_neither_a_folder_nor_on_a_hub_is_an_error(name):
    with pytest.raises(EncoderError, match=r"there is no folder .*, nor is it organization/model"):
        load_encoder(name)


def test_other_precisions_are_near_and_have_another_name(encoders, folders):
    name = f"hf:{folders['clip']}"
    half = load_encoder(name, device="cpu", precision="bf16")
    assert half.id == f"{name}?precision=bf16"
    assert half.fingerprint != encoders["clip"].fingerprint
    checked = agreement(*(e.encode_images(pictures()) for e in (half, encoders["clip"])))
    assert 0.99 < checked["minimum_cosine"] < 0.999999


def test_other_parameters_are_refused(folders):
    with pytest.raises(SettingError, match="has the parameters precision, not size"):
        load_encoder(f"hf:{folders['clip']}", size=3)

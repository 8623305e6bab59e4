"""onnx: encoders embed as the models they were written from, without torch."""

import json
import shutil
import subprocess
import sys
import warnings
from fnmatch import fnmatch

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra hf")
transformers = pytest.importorskip("transformers", reason="needs the extra hf")
onnx = pytest.importorskip("onnx", reason="needs the extra offline")

from PIL import Image  # noqa: E402

from promptboost.encoders import Encoder, load_encoder  # noqa: E402
from promptboost.encoders.base import TruncatedPromptWarning  # noqa: E402
from promptboost.encoders.onnx_towers import FILES, Preprocessor  # noqa: E402
from promptboost.errors import EncoderError, RunError  # noqa: E402
from promptboost.run import export  # noqa: E402
from promptboost.run.export import agreement, export_encoder  # noqa: E402
from promptboost.testing import check_encoder  # noqa: E402
from tests.cli.cli_tools import call  # noqa: E402
from tests.encoders.openclip.tiny_models import CONFIGS, TINY, save_tiny_models  # noqa: E402
from tests.encoders.test_huggingface import SIGLIP, TEXTS, pictures  # noqa: E402
from tests.encoders.tiny_checkpoints import FAMILIES, save_tiny  # noqa: E402
from tests.run.hub_server import Hub  # noqa: E402

WRITTEN = [family for family in FAMILIES if family != "naflex"]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Of the encoders that are written: those of transformers and those of open_clip."""
    folder = tmp_path_factory.mktemp("sources")
    made = {family: f"hf:{save_tiny(family, folder / family)}" for family in FAMILIES}
    return made | {name: f"{name}@{path}" for name, path in save_tiny_models(folder).items()}


@pytest.fixture(scope="module")
def towers(names, tmp_path_factory):
    """Their folders."""
    folder = tmp_path_factory.mktemp("towers")
    for family in (*WRITTEN, *CONFIGS):
        export_encoder(names[family], folder / family)
    return folder


@pytest.fixture
def copied(towers, tmp_path):
    """A folder that a test may change."""
    return shutil.copytree(towers / "clip", tmp_path / "clip")


def change(file, **values):
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize("family", [*WRITTEN, *CONFIGS])
def test_towers_embed_as_the_encoder_they_were_written_from(names, towers, family):
    source = load_encoder(names[family], device="cpu")
    encoder = load_encoder(f"onnx:{towers / family}")
    assert isinstance(encoder, Encoder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedPromptWarning)  # a token may be a letter
        assert check_encoder(encoder) == []
        texts = [*TEXTS, "A_Red  BIRD!", "", "a cat, " * 60]
        checked = agreement(source.encode_texts(texts), encoder.encode_texts(texts))
    assert checked["largest_difference"] < 1e-5
    assert (source.count_tokens(TEXTS) == encoder.count_tokens(TEXTS)).all()
    checked = agreement(source.encode_images(pictures(20)), encoder.encode_images(pictures(20)))
    # Transformers scales images with torchvision, a little differently.
    assert checked["minimum_cosine"] > (0.999 if family in WRITTEN else 0.999999)
    assert encoder.context_length == source.context_length
    assert encoder.logit_scale == pytest.approx(source.logit_scale, rel=1e-6)
    if family in WRITTEN:
        assert encoder.logit_bias == pytest.approx(source.logit_bias)
        assert encoder.trims is (family not in SIGLIP)


@pytest.mark.parametrize(
    ("processor", "settings"),
    [
        ("CLIPImageProcessor", {"size": {"shortest_edge": 40}, "crop_size": 32}),
        ("CLIPImageProcessor", {"size": 32, "crop_size": {"height": 32, "width": 24}}),
        ("CLIPImageProcessor", {"size": 32, "crop_size": 32, "resample": 2}),
        ("CLIPImageProcessor", {"size": 32, "crop_size": 32, "do_normalize": False}),
        ("CLIPImageProcessor", {"do_resize": False, "crop_size": 20, "do_rescale": False}),
        ("SiglipImageProcessor", {"size": {"height": 24, "width": 32}}),
    ],
)
def test_pixels_are_those_of_transformers_with_pillow(processor, settings):
    theirs = getattr(transformers, f"{processor}Pil")(**settings)
    # As older versions wrote it, and as this one does.
    for config in (theirs.to_dict(), {**theirs.to_dict(), **settings}):
        ours = Preprocessor(config)
        for image in pictures(10):
            expected = theirs(images=[image], return_tensors="np")["pixel_values"][0]
            np.testing.assert_allclose(ours(image), expected, rtol=1e-6, atol=1e-5)


def test_pixels_of_an_unknown_scaling_are_refused(copied):
    change(copied / "preprocessor_config.json", size={"longest_edge": 32})
    with pytest.raises(EncoderError, match="its configuration lacks 'a size with a shortest edge"):
        load_encoder(f"onnx:{copied}")


def test_siglip_in_a_graph_with_a_mask_attends_to_padding(names, towers, tmp_path):
    """Some repositories have such graphs."""
    folder = shutil.copytree(towers / "siglip2", tmp_path / "masked")
    file = folder / "onnx" / "text_model.onnx"
    model = onnx.load(file)
    mask = onnx.helper.make_tensor_value_info("attention_mask", onnx.TensorProto.INT64, ["n", 64])
    model.graph.input.append(mask)
    # Padding gets another token than it has.
    for node in model.graph.node:
        node.input[:] = ["present_ids" if name == "input_ids" else name for name in node.input]
    model.graph.node.insert(
        0, onnx.parser.parse_node("present_ids = Mul (input_ids, attention_mask)")
    )
    onnx.save(model, file)
    change(folder / "tokenizer_config.json", pad_token="<unk>")
    unmasked = shutil.copytree(towers / "siglip2", tmp_path / "unmasked")
    change(unmasked / "tokenizer_config.json", pad_token="<unk>")
    rows = [load_encoder(f"onnx:{path}").encode_texts(TEXTS) for path in (folder, unmasked)]
    np.testing.assert_allclose(*rows, atol=1e-6)


def test_the_only_precision_may_be_named(copied):
    encoder = load_encoder(f"onnx:{copied}", precision="fp32")
    assert encoder.id == f"onnx:{copied}"
    assert encoder.fingerprint == load_encoder(f"onnx:{copied}").fingerprint


def test_full_precision_is_preferred_and_a_quantized_tower_taken_if_it_is_the_only_one(copied):
    expected = load_encoder(f"onnx:{copied}").encode_images(pictures())
    other = copied / "onnx" / "vision_model_quantized.onnx"
    other.write_bytes(b"would be slower")
    assert (load_encoder(f"onnx:{copied}").encode_images(pictures()) == expected).all()
    (copied / "onnx" / "vision_model.onnx").rename(other)
    assert (load_encoder(f"onnx:{copied}").encode_images(pictures()) == expected).all()
    listed = ["onnx/vision_model_quantized.onnx", "onnx/vision_model.onnx_data", "onnx/model.onnx"]
    taken = [file for file in listed if any(fnmatch(file, pattern) for pattern in FILES)]
    assert taken == ["onnx/vision_model.onnx_data"]


def test_a_tower_in_half_precision_is_given_what_it_takes(copied, towers):
    file = copied / "onnx" / "vision_model.onnx"
    model = onnx.load(file)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for node in model.graph.node:
        node.input[:] = ["pixels" if name == "pixel_values" else name for name in node.input]
    model.graph.node.insert(0, onnx.parser.parse_node("pixels = Cast <to = 1> (pixel_values)"))
    onnx.save(model, file)
    encoders = [load_encoder(f"onnx:{path}") for path in (copied, towers / "clip")]
    assert agreement(*(e.encode_images(pictures()) for e in encoders))["minimum_cosine"] > 0.9999


def test_the_text_tower_waits_for_a_text_and_the_fingerprint_does_not(copied):
    first = load_encoder(f"onnx:{copied}")
    first.encode_images(pictures())
    assert "_text" not in vars(first)
    assert load_encoder(f"onnx:{copied}").fingerprint == first.fingerprint
    with (copied / "onnx" / "text_model.onnx").open("ab") as file:
        file.write(b"\0")
    assert load_encoder(f"onnx:{copied}").fingerprint != first.fingerprint


@pytest.mark.parametrize("file", ["onnx/text_model.onnx", "onnx/vision_model.onnx"])
def test_a_missing_tower_is_named(copied, file):
    (copied / file).unlink()
    with pytest.raises(EncoderError, match=f"has no {file}"):
        load_encoder(f"onnx:{copied}")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "config.json is not JSON"),
        ("config.json", "[]", "its configuration lacks 'model_type'"),
        ("config.json", '{"model_type": "clip", "text_config": 3}', "its configuration lacks"),
        ("preprocessor_config.json", "{}", "its configuration lacks 'image_mean'"),
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("onnx/vision_model.onnx", "no graph", "vision_model.onnx"),
    ],
)
def test_damaged_files_are_told(copied, file, content, message):
    (copied / file).write_text(content)
    with pytest.raises(EncoderError, match=message):
        load_encoder(f"onnx:{copied}")


def test_towers_that_do_not_fit_each_other_are_told(copied, towers):
    shutil.copy(towers / "siglip/onnx/text_model.onnx", copied / "onnx/text_model.onnx")
    change(copied / "tokenizer_config.json", model_max_length=64)
    with pytest.raises(EncoderError, match="embed in 24 and 32 dimensions"):
        load_encoder(f"onnx:{copied}").encode_texts(["a"])
    change(copied / "tokenizer_config.json", model_max_length=32)
    with pytest.raises(EncoderError, match="reads 64 tokens, its configuration has 32"):
        load_encoder(f"onnx:{copied}").encode_texts(["a"])


def test_a_graph_of_something_else_is_told(copied):
    file = copied / "onnx" / "vision_model.onnx"
    model = onnx.load(file)
    model.graph.output[0].name = "logits"
    for node in model.graph.node:
        node.output[:] = ["logits" if name == "image_embeds" else name for name in node.output]
    onnx.save(model, file)
    with pytest.raises(EncoderError, match="maps pixel_values to logits; needed are"):
        load_encoder(f"onnx:{copied}")


def test_there_is_no_other_device(towers):
    with pytest.raises(EncoderError, match="no device 'cuda'"):
        load_encoder(f"onnx:{towers / 'clip'}", device="cuda")


WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

absent, find = {"torch", "transformers", "open_clip", "onnx", "torchvision"}, PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name in absent else find(name, *rest)
from promptboost.cli import main
run, images, towers = sys.argv[1:]
fit = ["fit", images, "-o", run, "--encoder", f"onnx:{towers}", "--shots", "2", "--views", "1"]
for command in (fit, ["predict", run, images, "--format", "csv"]):
    try:
        main([*command, "-q"])
    except SystemExit as ended:
        assert not ended.code
"""


def test_fit_and_predict_need_no_torch(towers, tmp_path):
    colors = {"fire": "red", "ice": "blue"}
    for name, color in colors.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for size in (30, 40, 50, 60):
            Image.new("RGB", (size, 40), color).save(tmp_path / "images" / name / f"{size}.png")
    arguments = [str(path) for path in (tmp_path / "run", tmp_path / "images", towers / "clip")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    predicted = [line.split(",")[:2] for line in done.stdout.splitlines() if ".png," in line]
    assert len(predicted) == 8
    assert all(("fire" in image) is (answer == "fire") for image, answer in predicted)


def test_the_command_writes_and_says_how_near_it_is(capsys, names, tmp_path):
    folder = tmp_path / "towers"
    answer = call(capsys, "export", "--onnx-encoder", names["clip"], folder)
    assert answer.code == 0, answer.err
    assert "images differ by at most" in answer.out
    assert "smallest cosine 1.000000 (8 compared)" in answer.out
    assert sorted(path.name for path in folder.iterdir()) == [
        *("config.json", "onnx", "preprocessor_config.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]
    assert str(tmp_path) not in (folder / "config.json").read_text()
    again = call(capsys, "export", "--onnx-encoder", names["clip"], folder)
    assert (again.code, "--overwrite" in again.err) == (2, True)
    answer = call(capsys, "export", "--onnx-encoder", names[TINY], folder, "--overwrite", "--json")
    assert answer.json["checked"]["texts"]["minimum_cosine"] > 0.9999
    assert load_encoder(f"onnx:{folder}").dim == 32
    assert call(capsys, "export", "--onnx-encoder", "fake:8-0", folder, "-o", folder).code == 2
    assert call(capsys, "export", folder).code == 2


def test_towers_that_differ_are_not_written(names, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_LEAST_COSINE", 1.01)
    with pytest.raises(EncoderError, match=r"do not embed as hf:.* nothing is written"):
        export_encoder(names["clip"], tmp_path / "towers")
    assert not (tmp_path / "towers").exists()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="--overwrite"):
        export_encoder(names["clip"], tmp_path / "file")


@pytest.mark.parametrize("name", ["fake:8-0", "naflex"])
def test_what_has_no_towers_to_write_is_told(names, tmp_path, name):
    with pytest.raises(EncoderError, match="cannot be written as"):
        export_encoder(names.get(name, name), tmp_path / "towers")


def test_towers_come_from_a_hub_once_and_only_what_is_needed(towers, tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("no_proxy", "*")
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    files = {
        path.relative_to(towers / "clip").as_posix(): path.read_bytes()
        for path in (towers / "clip").rglob("*")
        if path.is_file()
    }
    others = {"pytorch_model.bin": b"", "onnx/vision_model_quantized.onnx": b"", "code.py": b""}
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.repositories["me/towers"] = [files | others]
        first = load_encoder("onnx:me/towers")
        asked = {path for _, path in hub.requests}
        assert not [path for path in asked if path.endswith((".bin", "quantized.onnx", ".py"))]
        hub.requests.clear()
        again = load_encoder("onnx:me/towers")
        assert hub.requests == []
        with pytest.raises(EncoderError, match="Cannot load onnx:me/nothing: "):
            load_encoder("onnx:me/nothing")
    local = load_encoder(f"onnx:{towers / 'clip'}")
    assert first.id == again.id == "onnx:me/towers"
    assert first.fingerprint == again.fingerprint == local.fingerprint
    np.testing.assert_array_equal(again.encode_texts(TEXTS), local.encode_texts(TEXTS))

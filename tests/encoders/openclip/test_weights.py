"""Weights are on this machine, at a hub that answers, or out of reach: each is told at once."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from promptboost.config import CLIP_ENCODER
from promptboost.encoders import default, hub_files, load_encoder
from promptboost.encoders.default import CLIP_REPOSITORY, chosen_encoder
from promptboost.errors import EncoderError
from tests.cli.cli_tools import call

open_clip = pytest.importorskip("open_clip")
constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture(autouse=True)
def hub_cache(tmp_path, monkeypatch):
    """An empty cache of the hub, no choice made yet, and no variable of the person who runs this."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PROMPTBOOST_ENCODER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    default._available.cache_clear()
    yield tmp_path / "hub"
    default._available.cache_clear()


@pytest.fixture
def closed_port(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine, which answers with a status and remembers what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        status = 200

        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(type(self).status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    Handler.asked = asked
    yield Handler
    server.shutdown()
    server.server_close()


def keep(cache, repository, *files):
    snapshot = cache / f"models--{repository.replace('/', '--')}" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    for name in files:
        (snapshot / name).write_bytes(b"")
    return snapshot


def no_network(monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("contacted"))


@pytest.mark.parametrize("name", ["ViT-B-32/openai", "hf-hub:some/model"])
def test_without_a_hub_one_clear_error_comes_at_once(closed_port, name):
    start = time.monotonic()
    with pytest.raises(EncoderError, match=r"not on this machine.*does not answer.*conse:lite0"):
        load_encoder(name)
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("address", ["no-address", "http://[", "file:///nowhere"])
def test_an_address_that_is_none_does_not_answer(monkeypatch, address):
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert hub_files.status_of_hub() is None


def test_a_hub_that_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(hub_files, "PATIENCE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(EncoderError, match=r"does not answer within 0\.3 s"):
            load_encoder("hf-hub:some/model")
        assert time.monotonic() - start < 2


def test_who_forbids_the_hub_is_obeyed(monkeypatch):
    no_network(monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EncoderError, match="HF_HUB_OFFLINE is set"):
        load_encoder("ViT-B-32/openai")
    assert chosen_encoder().name == "conse:lite0"


def test_weights_in_the_cache_are_loaded_without_a_word_to_the_hub(hub_cache, hub):
    import torch
    from safetensors.torch import save_file

    from tests.encoders.openclip.tiny_models import _MODEL

    snapshot = keep(hub_cache, "me/tiny")
    (snapshot / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": _MODEL, "preprocess_cfg": {"size": 32}})
    )
    torch.manual_seed(0)
    path = snapshot / "tiny.json"
    path.write_text(json.dumps(_MODEL))
    open_clip.add_model_config(path)
    save_file(open_clip.create_model("tiny").state_dict(), snapshot / "open_clip_model.safetensors")
    encoder = load_encoder("hf-hub:me/tiny", device="cpu")
    assert encoder.encode_texts(["a cat"]).shape == (1, 32)
    assert hub.asked == []
    assert constants.HF_HUB_OFFLINE is False


def test_clip_is_taken_where_its_weights_are(hub_cache, monkeypatch):
    no_network(monkeypatch)
    keep(hub_cache, CLIP_REPOSITORY, "open_clip_model.safetensors")
    assert chosen_encoder().name == CLIP_ENCODER
    assert "on this machine" in str(chosen_encoder())


def test_a_part_of_the_weights_is_not_enough(hub_cache, closed_port):
    keep(hub_cache, CLIP_REPOSITORY, "open_clip_config.json")
    assert chosen_encoder().name == "conse:lite0"


@pytest.mark.parametrize(("status", "taken"), [(200, CLIP_ENCODER), (403, "conse:lite0")])
def test_clip_is_taken_where_a_hub_has_it(hub, status, taken):
    hub.status = status
    assert chosen_encoder().name == taken
    assert hub.asked == [f"/{CLIP_REPOSITORY}/resolve/main/open_clip_model.safetensors"]
    chosen_encoder()
    assert len(hub.asked) == 1  # once in a process


def test_conse_says_what_it_is(closed_port, monkeypatch):
    line = str(chosen_encoder())
    assert "\n" not in line
    assert line.startswith("encoder conse:lite0: an ImageNet classifier")
    assert "less accurate than CLIP; ViT-B-32/openai is used if http://127.0.0.1" in line
    default._available.cache_clear()
    no_network(monkeypatch)
    monkeypatch.setattr(default, "find_spec", lambda name: None)
    assert "[clip]'" in str(chosen_encoder())


@pytest.fixture
def no_torch(monkeypatch):
    there = {"onnxruntime", "tokenizers"}
    monkeypatch.setattr(default, "find_spec", lambda name: name if name in there else None)


def test_without_torch_onnx_towers_are_taken_only_with_consent(hub, no_torch):
    asked = []
    assert chosen_encoder(lambda question: asked.append(question)).name == "conse:lite0"
    assert asked == [f"Download {default.ONNX_ENCODER} ({default._ONNX_FACTS})?"]
    for fact in ("606 MB", "MIT license", "63.2%"):
        assert fact in asked[0]
    assert "is used with --allow-download (606 MB" in str(chosen_encoder())
    assert chosen_encoder(lambda question: True).name == "onnx:Xenova/clip-vit-base-patch32"
    assert hub.asked == [f"/{default.ONNX_REPOSITORY}/resolve/main/onnx/vision_model.onnx"]


def test_without_torch_and_hub_it_stays_with_conse(closed_port, no_torch):
    choice = chosen_encoder(lambda question: pytest.fail("asked"))
    assert choice.name == "conse:lite0"
    assert f"{default.ONNX_ENCODER} is used with --allow-download, if http://127" in str(choice)


def test_onnx_towers_in_the_cache_need_no_consent(hub_cache, no_torch, monkeypatch):
    no_network(monkeypatch)
    snapshot = keep(hub_cache, default.ONNX_REPOSITORY)
    (snapshot / "onnx").mkdir()
    (snapshot / "onnx" / "vision_model.onnx").touch()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert chosen_encoder().name == "conse:lite0"  # half of it
    default._available.cache_clear()
    (snapshot / "onnx" / "text_model.onnx").touch()
    assert chosen_encoder().name == default.ONNX_ENCODER


@pytest.mark.parametrize("typed", [(), ("--encoder", "auto")])
def test_a_fit_that_may_download_takes_them(hub, no_torch, tmp_path, capsys, monkeypatch, typed):
    from PIL import Image

    for name, color in {"fire": "red", "ice": "blue"}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for size in (8, 9):
            Image.new("RGB", (size, 8), color).save(tmp_path / "photos" / name / f"{size}.png")
    command = ("fit", tmp_path / "photos", "-o", tmp_path / "run", "--shots", "1", *typed)
    answer = call(capsys, *command, "--allow-download")
    assert f"encoder {default.ONNX_ENCODER}: CLIP as ONNX, 606 MB, MIT" in answer.err
    assert f"Cannot load {default.ONNX_ENCODER}" in answer.err  # this hub has no such file


@pytest.mark.parametrize("prefix", ["hf", "st", "onnx"])
def test_a_model_that_is_not_here_is_told_at_once(closed_port, prefix):
    start = time.monotonic()
    with pytest.raises(
        EncoderError, match=r"not on this machine.*does not answer.*type their folder"
    ):
        load_encoder(f"{prefix}:some/model")
    assert time.monotonic() - start < 3


def test_a_model_in_the_cache_is_loaded_without_a_word_to_the_hub(hub_cache, monkeypatch):
    from tests.encoders.tiny_checkpoints import save_tiny

    snapshot = keep(hub_cache, "me/tiny-clip")
    save_tiny("clip", snapshot)
    no_network(monkeypatch)
    encoder = load_encoder("hf:me/tiny-clip", device="cpu")
    assert encoder.id == "hf:me/tiny-clip"
    assert encoder.encode_texts(["a cat"]).shape == (1, 24)


def test_the_repository_is_the_one_that_open_clip_names():
    published = open_clip.get_pretrained_cfg(*CLIP_ENCODER.split("/"))
    assert published["hf_hub"].rstrip("/") == CLIP_REPOSITORY


@pytest.mark.parametrize("typed", [(), ("--encoder", "auto")])
def test_a_fit_tells_and_records_what_was_chosen(tmp_path, capsys, monkeypatch, typed):
    from PIL import Image

    no_network(monkeypatch)
    monkeypatch.setenv("PROMPTBOOST_ENCODER", "fake:32-0")
    for name, color in {"fire": "red", "ice": "blue"}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for size in (8, 9, 10):
            Image.new("RGB", (size, 8), color).save(tmp_path / "photos" / name / f"{size}.png")
    run = tmp_path / "run"
    answer = call(capsys, "fit", tmp_path / "photos", "-o", run, "--shots", "2", *typed)
    assert answer.code == 0, answer.err
    assert "encoder fake:32-0: named by PROMPTBOOST_ENCODER" in answer.err
    assert 'encoder = "fake:32-0"' in (run / "run.toml").read_text()
    again = call(capsys, "fit", tmp_path / "photos", "-o", run, "--shots", "2", *typed, "--resume")
    assert "already finished" in again.err

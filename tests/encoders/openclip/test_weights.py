"""Weights are on this machine, at a hub that answers, or out of reach: each is told at once."""

import builtins
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from promptboost.config import CLIP_ENCODER
from promptboost.encoders import default, load_encoder
from promptboost.encoders.default import CLIP_REPOSITORY, chosen_encoder
from promptboost.encoders.openclip import weights
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
    default._found.cache_clear()
    yield tmp_path / "hub"
    default._found.cache_clear()


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


@pytest.fixture
def lists():
    """What open_clip's lists say without it."""
    weights._lists.cache_clear()
    yield weights._lists()
    weights._lists.cache_clear()


def test_the_lists_are_those_of_open_clip(lists):
    assert lists.list_pretrained() == open_clip.list_pretrained()
    for architecture, tag in open_clip.list_pretrained():
        published = open_clip.get_pretrained_cfg(architecture, tag)
        assert lists.get_pretrained_cfg(architecture, tag) == published
        settings = open_clip.get_model_config(architecture)
        assert lists.get_model_config(architecture) == settings
    assert lists.get_model_config("no such") is None
    assert weights.catalogue() is open_clip, "which has been loaded, and may know more"


def test_a_version_that_is_built_otherwise_is_loaded_whole(monkeypatch):
    def other():
        raise AttributeError("list_pretrained")

    monkeypatch.delitem(sys.modules, "open_clip")
    monkeypatch.setattr(weights, "_lists", other)
    monkeypatch.setattr("builtins.__import__", _given_back(builtins.__import__))
    assert weights.catalogue() is open_clip


def _given_back(usual):
    """Import as usual, but open_clip without loading it a second time."""

    def load(name, *given, **named):
        return open_clip if name == "open_clip" else usual(name, *given, **named)

    return load


@pytest.mark.parametrize(
    "typed",
    [
        ("fit", "photos", "-o", "run", "--encoder", "ViT-B-32/openai"),
        ("fit", "photos", "-o", "run", "--encoder", "ViT-B-32/laion2b_s34b_b79k"),
        ("fit", "photos", "-o", "run", "--encoder", "hf-hub:some/model"),
        ("embed", "photos", "--encoder", "RN50/openai"),
    ],
)
def test_a_command_without_a_hub_loads_no_torch(hub_cache, closed_port, tmp_path, typed):
    """Nor where weights of other models are kept: it takes longer than the error may."""
    from PIL import Image

    keep(hub_cache, "other/model", "open_clip_model.safetensors")
    for name in ("fire", "ice"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for size in (8, 9, 10):
            Image.new("RGB", (size, 8)).save(tmp_path / "photos" / name / f"{size}.png")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "torch.py").write_text("raise SystemExit('torch was loaded')")
    done = subprocess.run(
        [sys.executable, "-m", "promptboost", *typed],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "first"), *sys.path]),
            "HF_HUB_CACHE": str(hub_cache),
            "PROMPTBOOST_CACHE": str(tmp_path / "store"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error: ") == 1
    assert f"Cannot load {typed[-1]}: its weights are not on this machine" in done.stderr


def test_the_hub_is_asked_once_while_a_command_loads(hub, hub_cache):
    weights.ask_ahead(["conse:lite0", "ViT-B-32@file", "module:Class?at=a/b", "no/model"])
    assert weights._asked_ahead == {}
    weights.ask_ahead(["conse:lite0", "ViT-B-32/openai"])
    weights.check_reach("ViT-B-32/openai")
    assert hub.asked == ["/"]
    keep(hub_cache, CLIP_REPOSITORY, "open_clip_model.safetensors")
    weights.ask_ahead(["ViT-B-32/openai"])
    assert weights._asked_ahead == {}, "what is here is not asked for"


@pytest.mark.parametrize("address", ["no-address", "http://[", "file:///nowhere"])
def test_an_address_that_is_none_does_not_answer(monkeypatch, address):
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert weights.status_of_hub() is None


def test_a_hub_that_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(weights, "PATIENCE", 0.3)
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
    assert "weaker than CLIP; ViT-B-32/openai is taken where http://127.0.0.1" in line
    default._found.cache_clear()
    no_network(monkeypatch)
    monkeypatch.setattr(default, "find_spec", lambda name: None)
    assert "pip install 'promptboost[clip]'" in str(chosen_encoder())


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
    assert ("encoder fake:32-0: named by PROMPTBOOST_ENCODER" in answer.err) is not bool(typed)
    assert 'encoder = "fake:32-0"' in (run / "run.toml").read_text()
    again = call(capsys, "fit", tmp_path / "photos", "-o", run, "--shots", "2", *typed, "--resume")
    assert "finished already" in again.err

"""A stranger's run names an encoder: nothing is imported, and no hub contacted, unasked."""

import sys

import pytest
from PIL import Image

from promptboost import PromptEnsemble, load
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.registry import check_trusted, register_encoder
from promptboost.errors import EncoderError
from promptboost.model import Round

CODE = """
import pathlib
pathlib.Path({mark!r}).touch()
from promptboost.encoders.fake import FakeEncoder
class Eye(FakeEncoder):
    def __init__(self):
        super().__init__(dim=8)
        self.id = "strange_eye:Eye"
"""


@pytest.fixture(autouse=True)
def _own_store(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def strange_module(monkeypatch, tmp_path):
    mark = tmp_path / "imported"
    (tmp_path / "strange_eye.py").write_text(CODE.format(mark=str(mark)))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield mark
    sys.modules.pop("strange_eye", None)


def run_naming(encoder, folder):
    banks = {"fire": {"something red": 1}, "ice": {"something blue": 1}}
    rounds = (Round("{}", banks, 0.0, 0.1),)
    folder.mkdir()
    PromptEnsemble(("fire", "ice"), rounds, encoder_id=encoder).save(folder / "ensemble.json")
    return folder


def test_a_run_that_names_no_model_in_particular_asks_no_hub(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("promptboost.encoders.default.status_of_hub", asked.append)
    run = run_naming("auto", tmp_path / "run")
    for allowed in (False, True):
        with pytest.raises(EncoderError, match=r"'auto', which asks a model hub.*--encoder NAME"):
            load(run, allow_download=allowed).predict(Image.new("RGB", (8, 8)))
    assert not asked


def test_code_that_a_run_names_is_not_imported(strange_module, tmp_path):
    run = run_naming("strange_eye:Eye", tmp_path / "run")
    for allowed in (False, True):
        classifier = load(run, allow_download=allowed)
        with pytest.raises(EncoderError, match=r"code that would be imported.*--encoder"):
            classifier.predict(Image.new("RGB", (8, 8)))
    assert not strange_module.exists()
    assert load(run, "strange_eye:Eye").predict(Image.new("RGB", (8, 8))).shape == (1,)
    assert strange_module.exists()
    # Used here once, it is known here.
    assert load(run).predict(Image.new("RGB", (8, 8))).shape == (1,)


@pytest.mark.parametrize("name", ["os:system?command=false", "subprocess:run?args=false", "a.b:C"])
def test_what_is_no_encoder_at_all_is_not_called(name, tmp_path):
    with pytest.raises(EncoderError, match="code that would be imported"):
        load(run_naming(name, tmp_path / "run")).predict(Image.new("RGB", (8, 8)))


@pytest.mark.parametrize(
    "name",
    [
        *("hf-hub:some/model", "ViT-B-32/openai", "ViT-B-16-SigLIP2/webli", "ViT-H-14/dfn5b"),
        *("hf:some/model", "st:some/model", "onnx:some/model"),
    ],
)
def test_a_hub_is_not_contacted_unasked(name, tmp_path, monkeypatch):
    pytest.importorskip("open_clip")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("contacted"))
    monkeypatch.setenv("HOME", str(tmp_path))
    run = run_naming(name, tmp_path / "run")
    with pytest.raises(EncoderError, match=r"from a model hub; .*--allow-download"):
        load(run).predict(Image.new("RGB", (8, 8)))
    check_trusted(name, allow_download=True)


def test_what_is_in_the_cache_of_the_hub_may_be_used(tmp_path, monkeypatch):
    pytest.importorskip("open_clip")
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    names = [f"{prefix}:some/model" for prefix in ("hf-hub", "hf", "st", "onnx")]
    for name in names:
        with pytest.raises(EncoderError):
            check_trusted(name)
    snapshot = tmp_path / "models--some--model" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (snapshot / "open_clip_model.safetensors").touch()
    for name in names:
        check_trusted(name)
    check_trusted(f"hf:{tmp_path}")  # a folder


def test_installed_and_registered_encoders_need_no_leave(tmp_path):
    check_trusted("conse:lite0")
    check_trusted("fake:8-0")
    with pytest.raises(EncoderError):
        check_trusted("mine:8")
    register_encoder("mine", lambda rest, device=None: None)
    check_trusted("mine:8")


def test_an_encoder_used_before_is_known(tmp_path):
    Embedder.open("fake:8-0").texts(["a"])
    check_trusted("fake:8-0")

import os
import subprocess
import sys

import pytest

from promptboost.encoders import Encoder, encoder_defaults, load_encoder
from promptboost.encoders import runtime as extras_module
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.registry import check_trusted
from promptboost.errors import EncoderError, MissingExtraError, SettingError


def test_a_fake_encoder_is_made_to_measure():
    encoder = load_encoder("fake:48-3")
    assert isinstance(encoder, FakeEncoder)
    assert isinstance(encoder, Encoder)
    assert (encoder.dim, encoder.seed) == (48, 3)
    assert load_encoder(encoder.id).fingerprint == encoder.fingerprint


@pytest.mark.parametrize("name", ["fake:", "fake:0-1", "fake:12", "fake:a-b", "fake:3-1-2"])
def test_a_fake_encoder_without_its_numbers_is_refused(name):
    with pytest.raises(EncoderError):
        load_encoder(name)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("conse:lit0", "conse:lite0"),
        ("conse:", "conse:lite0"),
        ("ViT-B-32", "ViT-B-32/openai"),
        ("vit-b-32/OpenAI", "ViT-B-32/openai"),
        ("ViT-B-32/opneai", "ViT-B-32/openai"),
        ("ViT-L-14/laion2b", "ViT-L-14/laion2b_s32b_b82k"),
    ],
)
def test_an_unknown_name_is_answered_with_close_ones(typed, meant):
    pytest.importorskip("open_clip", reason="needs the extra clip")
    with pytest.raises(EncoderError, match=r"type: promptboost models$") as caught:
        load_encoder(typed)
    assert repr(typed) in str(caught.value)
    assert meant in str(caught.value).split("Did you mean")[1]


@pytest.mark.parametrize("name", ["", "/", "@", "zzz", "zzz/zzz", "hf-hub:only-one", "zzz@file"])
def test_nonsense_is_refused_politely(name):
    pytest.importorskip("open_clip", reason="needs the extra clip")
    with pytest.raises(EncoderError):
        load_encoder(name)


def test_an_architecture_with_a_slip_is_answered_with_architectures():
    pytest.importorskip("open_clip", reason="needs the extra clip")
    with pytest.raises(EncoderError, match=r"no architecture 'ViT-B32'.*ViT-B-32"):
        load_encoder("ViT-B32@weights.pt")


@pytest.mark.parametrize("name", ["ViT-B33/openai", "ViT-B33@file", "hf-hub:some/model"])
def test_a_model_out_of_reach_fails_before_open_clip_is_imported(name):
    pytest.importorskip("open_clip", reason="needs the extra clip")
    program = f"""
import sys
from promptboost.encoders.registry import load_encoder
from promptboost.errors import EncoderError
try:
    load_encoder({name!r})
except EncoderError as error:
    print(error)
print("open_clip" in sys.modules, "torch" in sys.modules)
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": os.devnull}
    run = [sys.executable, "-c", program]
    result = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    error, modules = result.stdout.splitlines()
    assert error.startswith(("There is no", "Cannot load hf-hub:some/model: its weights are not"))
    assert modules == "False False"


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("open_clip", reason="needs the extra clip")
    with pytest.raises(EncoderError, match=r"no checkpoint .*missing\.pt"):
        load_encoder(f"ViT-B-32@{tmp_path}/missing.pt")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("fake:8-0", "has no parameters"),
        ("conse:lite0", "has no parameters"),
        ("ViT-B-32/openai", "precision"),
        ("hf-hub:a/b", "precision"),
        ("ViT-B-32@file", "precision"),
    ],
)
def test_a_parameter_an_encoder_does_not_have_is_refused(name, known):
    with pytest.raises(SettingError, match=f"{known}.*not color"):
        load_encoder(name, color="red")


@pytest.mark.parametrize(
    ("name", "absent", "extra"),
    [
        ("ViT-B-32/openai", "open_clip", "clip"),
        ("hf-hub:org/name", "open_clip", "clip"),
        ("ViT-B-32@weights.pt", "torch", "clip"),
        ("conse:lite0", "tokenizers", "offline"),
        ("conse:lite2", "onnxruntime", "offline"),
    ],
)
def test_a_missing_package_is_named_with_the_command_to_type(monkeypatch, name, absent, extra):
    real = extras_module.find_spec
    monkeypatch.setattr(
        extras_module, "find_spec", lambda module: None if module == absent else real(module)
    )
    with pytest.raises(MissingExtraError, match=absent) as caught:
        load_encoder(name)
    assert str(caught.value).endswith(f"[{extra}]'")


def test_importing_encoders_imports_nothing_heavy():
    code = (
        "import sys, promptboost.encoders as e; e.load_encoder('fake:4-0');"
        "heavy = {'torch', 'open_clip', 'onnxruntime', 'PIL', 'tokenizers'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_number_of_images_in_a_batch():
    assert load_encoder("fake:8-0", batch_size=5).batch_size == 5
    assert not hasattr(load_encoder("fake:8-0", batch_size="auto"), "batch_size")
    with encoder_defaults(batch_size=7):
        assert load_encoder("fake:8-0").batch_size == 7
        assert load_encoder("fake:8-0", batch_size=5).batch_size == 5
    assert not hasattr(load_encoder("fake:8-0"), "batch_size")
    for wrong in (0, "many"):
        with pytest.raises(SettingError, match=r"batch_size is .*from 1 up"):
            load_encoder("fake:8-0", batch_size=wrong)


def test_precision_of_encoders_that_have_only_one():
    assert load_encoder("fake:8-0", precision="fp32").id == "fake:8-0"
    assert load_encoder("fake:8-0?precision=fp32").id == "fake:8-0"
    for name in ("fake:8-0", "tests.encoders.test_registry:Plain?size=3"):
        with pytest.raises(SettingError, match="has no parameters, not precision"):
            load_encoder(name, precision="bf16")
    with encoder_defaults(precision="fp16"), pytest.raises(SettingError, match="not precision"):
        load_encoder("fake:8-0")
    with pytest.raises(SettingError, match="precision is 'fp64': give fp16, bf16, fp32"):
        load_encoder("fake:8-0", precision="fp64")
    assert load_encoder("tests.encoders.test_registry:Plain?size=3", precision="fp32").dim == 3


class Plain(FakeEncoder):
    """An encoder of another package."""

    def __init__(self, size):
        super().__init__(int(size))


def test_a_precision_in_the_name_does_not_change_whom_to_trust():
    with pytest.raises(EncoderError, match="code that would be imported"):
        check_trusted("os:system?precision=bf16")
    check_trusted("fake:8-0?precision=fp32")

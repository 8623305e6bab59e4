"""The commands that look at a run, at encoders, or at the machine."""

import json

import pytest

import promptboost.encoders.embedder as embedding_module
from promptboost.encoders import load_encoder
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.store import EmbeddingStore, text_key
from promptboost.model import PromptEnsemble
from tests.cli.cli_tools import FIT, call
from tests.run.run_tools import write_images


def test_show(capsys, fitted, monkeypatch):
    monkeypatch.setattr("promptboost.cli.show._SHOWN", 2)
    by_class = call(capsys, "show", fitted / "run")
    assert by_class.out.startswith("4 classes, 5 rounds (gradient), ")
    assert "hardest training images" in by_class.out
    assert "more (--all shows them)" in by_class.out
    everything = call(capsys, "show", fitted / "run", "--all")
    assert "--all" not in everything.out


def test_show_one_class(capsys, fitted):
    answer = call(capsys, "show", fitted / "run", "--class", "sea", "--json")
    assert list(answer.json["classes"]) == ["sea"]
    assert abs(sum(answer.json["classes"]["sea"].values()) - 1) < 1e-9
    assert list(answer.json["rounds"][0]["banks"]) == ["sea"]
    wrong = call(capsys, "show", fitted / "run", "--class", "lake")
    both = call(capsys, "show", fitted / "run", "--class", "sea", "--class", "leaf", "--json")
    assert list(both.json["classes"]) == ["sea", "leaf"]
    assert (wrong.code, len(wrong.err.splitlines())) == (2, 1)


def test_evaluate(capsys, fitted):
    write_images(fitted / "new", count=2, seed=3)
    answer = call(capsys, "evaluate", fitted / "run", fitted / "new")
    assert answer.out.startswith("8 images, encoder fake:32-0")
    assert call(capsys, "evaluate", fitted / "run", fitted / "new", "--json").json["images"] == 8
    flattered = call(capsys, "evaluate", fitted / "run", fitted / "images")
    assert "the run was trained on 16 of these images" in flattered.err
    (fitted / "run/metrics.json").unlink()
    unknown = call(capsys, "evaluate", fitted / "run", fitted / "new")
    assert "training images of the run are unknown" in unknown.err


def test_show_says_when_the_text_was_edited(capsys, fitted):
    assert "edited" not in call(capsys, "show", fitted / "run").out
    file = fitted / "run/ensemble.json"
    first = next(iter(PromptEnsemble.load(file).rounds[0].banks["sea"]))
    file.write_text(file.read_text().replace(json.dumps(first), '"a very calm lake"'))
    assert "edited after the fit" in call(capsys, "show", fitted / "run").out
    assert call(capsys, "show", fitted / "run", "--json").json["edited"] is True


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "transfer", "embed"])
def test_the_device_reaches_the_encoder(capsys, fitted, monkeypatch, command):
    seen = []

    def load(name, *, device):
        seen.append(device)
        return load_encoder(name, device=device)

    monkeypatch.setattr(embedding_module, "load_encoder", load)
    arguments = {
        "fit": [fitted / "images", "-o", fitted / "new", *FIT],
        "predict": [fitted / "run", fitted / "images"],
        "evaluate": [fitted / "run", fitted / "images"],
        "transfer": [fitted / "run", "--encoder", "fake:16-1"],
        "embed": [fitted / "images", "--encoder", "fake:16-1"],
    }[command]
    assert call(capsys, command, *arguments, "--device", "cuda:7").code == 0
    assert seen == ["cuda:7"]


def test_batch_size_and_precision_reach_the_encoder(capsys, fitted, monkeypatch):
    loaded = []
    load = embedding_module.load_encoder
    monkeypatch.setattr(
        embedding_module, "load_encoder", lambda *a, **k: loaded.append(load(*a, **k)) or loaded[-1]
    )
    images = [fitted / "run", fitted / "images"]
    options = ["--no-cache", "--batch-size", 5, "--precision", "fp32"]
    few = call(capsys, "predict", *images, *options)
    usual = call(capsys, "predict", *images, "--no-cache", "--batch-size", "auto")
    assert [getattr(encoder, "batch_size", None) for encoder in loaded] == [5, None]
    assert few.out == usual.out
    half = call(capsys, "predict", *images, "--precision", "bf16", "--no-cache")
    assert (half.code, len(half.err.splitlines())) == (2, 1)
    assert "fake:32-0 has no parameters, not precision" in half.err
    assert call(capsys, "predict", *images, "--batch-size", 0).code == 2


def test_transfer_makes_the_report_again(capsys, fitted):
    answer = call(capsys, "transfer", fitted / "run", "--encoder", "fake:16-1")
    assert "encoder fake:16-1, 16 images, held out" in answer.out
    assert "fake:16-1" in (fitted / "run/report.html").read_text()
    found = call(capsys, "transfer", fitted / "run", "--encoder", "fake:16-1", "--json").json
    assert found["encoder"] == "fake:16-1"


def test_report(capsys, fitted):
    (fitted / "run/report.html").unlink()
    answer = call(capsys, "report", fitted / "run", "--json")
    assert answer.json["report"] == str(fitted / "run/report.html")
    assert (fitted / "run/report.html").exists()
    assert "does not exist" in call(capsys, "report", fitted / "none").err


def test_embed_fills_the_store(capsys, task):
    answer = call(capsys, "embed", task / "images", "--encoder", "fake:32-0", "--views", 2)
    assert "32 images, 96 vectors" in answer.out
    assert EmbeddingStore().report().rows == 96


def test_texts_embedded_ahead_are_not_embedded_by_a_fit(capsys, task, monkeypatch):
    texts = ["--texts", task / "sentences.json", "--encoder", "fake:32-0"]
    first = call(capsys, "embed", task / "images", *texts, "--views", 2, "--json").json
    assert (first["rows"], first["new_rows"]) == (96, 96)
    assert 0 < first["new_texts"] <= first["texts"]
    again = call(capsys, "embed", *texts, "--json").json
    assert (again["images"], again["new_texts"], again["texts"]) == (0, 0, first["texts"])
    line = call(capsys, "embed", *texts).out
    assert f"{first['texts']} texts (0 new, {first['texts']} in the store already)" in line

    def never(*_):
        raise AssertionError("embedded again")

    monkeypatch.setattr(FakeEncoder, "encode_texts", never)
    monkeypatch.setattr(FakeEncoder, "encode_images", never)
    prompts = ["--prompts", task / "sentences.json"]
    fit = call(capsys, "fit", task / "images", "-o", task / "run", *FIT, *prompts)
    assert fit.code == 0, fit.err


def test_embed_reads_one_text_a_line_and_saved_pools(capsys, task):
    (task / "texts.txt").write_text("a red cat\n\n a blue  dog\na red cat\n")
    answer = call(capsys, "embed", "--texts", task / "texts.txt", "--encoder", "fake:32-0")
    assert answer.out.startswith("2 texts (2 new, 0 in the store already)")
    keys = [text_key(text) for text in ("a red cat", "a blue dog")]
    fingerprint = FakeEncoder(32).fingerprint
    assert EmbeddingStore().find(fingerprint, keys, dim=32)[1] == []
    pool = ["pool", "build", task / "sentences.json", "--classes", task / "images"]
    assert call(capsys, *pool, "-o", task / "pool.jsonl").code == 0
    saved = ["embed", "--texts", task / "pool.jsonl", "--encoder", "fake:32-0", "--json"]
    assert call(capsys, *saved).json["new_texts"] > 10
    assert call(capsys, *saved).json["new_texts"] == 0


def test_embed_says_what_is_wrong_with_texts(capsys, task):
    assert "there is nothing to embed" in call(capsys, "embed").err
    (task / "empty.txt").write_text("\n")
    (task / "odd.txt").write_text("a \x1b cat\n")
    for name, words in (("none.txt", "cannot be read"), ("empty.txt", "holds no texts")):
        answer = call(capsys, "embed", "--texts", task / name)
        assert (answer.code, words in answer.err) == (2, True)
    assert "line 1 of" in call(capsys, "embed", "--texts", task / "odd.txt").err


def test_models(capsys, monkeypatch):
    shown = call(capsys, "models").out
    assert "ViT-B-32/openai" in shown
    assert max(map(len, shown.splitlines())) <= 100  # columns of a terminal
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout.isatty", lambda: True)
        patch.setenv("COLUMNS", "80")
        narrow = call(capsys, "models").out
    assert "ViT-B-32/openai" in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    names = [record["name"] for record in call(capsys, "models", "--json").json["models"]]
    assert "conse:lite0" in names


def test_cache(capsys, fitted):
    shown = call(capsys, "cache", "--json").json
    assert shown["rows"] > 0
    assert call(capsys, "cache", "clear", "--json").json["freed_bytes"] > 0
    assert call(capsys, "cache", "--json").json["rows"] == 0


def test_doctor(capsys):
    answer = call(capsys, "doctor", "--encoder", "fake:16-0")
    assert answer.code == 0
    assert "ok      encoder fake:16-0: loads and encodes, 16 dimensions" in answer.out
    sick = call(capsys, "doctor", "--encoder", "conse:lite9", "--json")
    assert sick.code == 2
    faults = [item["name"] for item in sick.json["findings"] if item["ok"] is False]
    assert faults == ["encoder conse:lite9"]


def test_doctor_tries_the_store(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "file" / "cache"))
    answer = call(capsys, "doctor", "--encoder", "fake:16-0")
    assert answer.code == 2
    assert "FAULT   embedding store: embeddings cannot be stored in" in answer.out
    assert "all sound" not in answer.out


def test_json_never_holds_what_json_cannot(capsys, fitted):
    for arguments in (["show", fitted / "run"], ["cache"], ["models"]):
        answer = call(capsys, *arguments, "--json")
        assert len(answer.out.splitlines()) == 1
        json.loads(answer.out, parse_constant=lambda name: 1 / 0)

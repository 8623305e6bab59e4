import json
import shutil

import pytest

from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError
from promptboost.model import Head
from promptboost.pool import build_pool, save_pool
from promptboost.run.fit import fit_run
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import transfer_run
from tests.run.run_tools import SENTENCES, request, write_images

OTHER = "fake:48-3"


def transfers(task):
    return json.loads((task / "run/metrics.json").read_text())["transfers"]


def test_the_text_moves(fitted):
    found = transfer_run(fitted / "run", OTHER)
    head = Head.load(found["head"])
    assert (head.dim, head.encoder_id) == (48, OTHER)
    assert found["images"] == 16
    names = {"zero-shot", "template-mean", "pool-mean", "text", "promptboost"}
    assert found["accuracy"].keys() == names
    assert all(0 <= accuracy <= 1 for accuracy in found["accuracy"].values())
    [kept] = RunFolder(fitted / "run").results.transfers
    assert (kept.encoder, kept.accuracy) == (OTHER, found["accuracy"])


def test_transfer_to_itself_gives_the_figures_of_the_fit(fitted):
    found = transfer_run(fitted / "run", "fake:32-0")
    for method in RunFolder(fitted / "run").results.methods:
        if method.name != "logistic":
            assert found["accuracy"][method.name] == method.accuracy


def test_a_second_transfer_to_the_same_encoder_replaces_the_first(fitted):
    for encoder in (OTHER, "fake:16-1", OTHER):
        transfer_run(fitted / "run", encoder)
    assert [line["encoder"] for line in transfers(fitted)] == ["fake:16-1", OTHER]


def test_without_the_images_only_the_head_is_made(fitted):
    shutil.rmtree(fitted / "images")
    found = transfer_run(fitted / "run", OTHER)
    assert found["accuracy"]["promptboost"] is None
    assert "does not exist" in found["note"]
    assert (fitted / "run/head-fake-48-3.safetensors").exists()


def test_moved_images_can_be_pointed_at(fitted):
    before = transfer_run(fitted / "run", OTHER)
    (fitted / "images").rename(fitted / "moved")
    found = transfer_run(fitted / "run", OTHER, str(fitted / "moved"))
    assert found["accuracy"]["promptboost"] == before["accuracy"]["promptboost"]
    assert found["note"] == ""


def test_other_images_are_all_held_out(fitted):
    write_images(fitted / "new", count=3, seed=9)
    found = transfer_run(fitted / "run", OTHER, str(fitted / "new"))
    assert found["images"] == 12
    assert found["note"].startswith("measured on other images; without a residual")
    assert found["left_out"] == 0


def test_images_learned_from_are_left_out_whatever_their_names(fitted):
    write_images(fitted / "new", count=3, seed=9)
    learned = json.loads((fitted / "run/metrics.json").read_text())["hardest"][:2]
    for number, item in enumerate(learned):
        source = fitted / "images" / item["image"]
        shutil.copy(source, fitted / "new" / item["label"] / f"renamed-{number}.png")
    found = transfer_run(fitted / "run", OTHER, str(fitted / "new"))
    assert (found["images"], found["left_out"]) == (12, 2)
    assert "left out because they are in the training set: 2" in found["note"]
    assert transfers(fitted)[0]["note"] == found["note"]


def test_an_older_run_does_not_say_what_it_learned_from(fitted):
    metrics = json.loads((fitted / "run/metrics.json").read_text())
    del metrics["task"]["learn_digests"]
    (fitted / "run/metrics.json").write_text(json.dumps(metrics))
    write_images(fitted / "new", count=3, seed=9)
    found = transfer_run(fitted / "run", OTHER, str(fitted / "new"))
    assert found["images_are"] == "perhaps trained on"


def test_figures_are_kept_when_nothing_can_be_measured(fitted):
    transfer_run(fitted / "run", OTHER)
    before = transfers(fitted)
    shutil.rmtree(fitted / "images")
    found = transfer_run(fitted / "run", OTHER)
    assert found["accuracy"]["promptboost"] is None
    assert found["note"].endswith("the earlier results are kept")
    assert transfers(fitted) == before


def test_changed_images_are_not_measured_on(fitted):
    victim = json.loads((fitted / "run/metrics.json").read_text())["hardest"][0]["image"]
    (fitted / "images" / victim).unlink()
    found = transfer_run(fitted / "run", OTHER)
    assert found["accuracy"]["promptboost"] is None
    assert "have changed" in found["note"]


def test_wrong_images_are_an_error_when_asked_for(fitted):
    with pytest.raises(DataError):
        transfer_run(fitted / "run", OTHER, str(fitted / "nowhere"))


def test_without_the_sentences_the_pool_is_not_measured(fitted):
    (fitted / "sentences.json").unlink()
    found = transfer_run(fitted / "run", OTHER)
    assert found["accuracy"]["pool-mean"] is None
    assert found["accuracy"]["template-mean"] is None
    assert found["accuracy"]["promptboost"] is not None


def test_a_text_moves_without_looking_at_the_images_of_the_fit(fitted, monkeypatch):
    whole = transfer_run(fitted / "run", OTHER)
    seen = []
    embed = Embedder.images

    def counting(embedder, images, **options):
        seen.append((len(images), options))
        return embed(embedder, images, **options)

    monkeypatch.setattr(Embedder, "images", counting)
    alone = transfer_run(fitted / "run", OTHER, text_only=True)
    assert seen == [(alone["images"], {})]  # those held out, no crops
    assert alone["accuracy"]["promptboost"] == whole["accuracy"]["text"]
    assert "text" not in alone
    assert alone["note"] == "the residual of an earlier transfer is dropped"
    assert transfer_run(fitted / "run", OTHER, text_only=True)["note"] == ""


def test_a_run_on_a_saved_pool_moves_with_it(task):
    file = task / "pool.jsonl"
    save_pool(build_pool(list(SENTENCES), descriptions={"mine": SENTENCES}), file)
    fit_run(**request(task, prompts=str(file)))
    fit_run(**request(task, "plain"))
    found = transfer_run(task / "run", OTHER)
    # The same words in another file: the same figures.
    assert {**found, "head": 0} == {
        **transfer_run(task / "plain", OTHER),
        "head": 0,
    }
    assert found["accuracy"]["pool-mean"] is not None
    save_pool(build_pool(list(SENTENCES)), file)
    assert transfer_run(task / "run", OTHER)["accuracy"]["pool-mean"] is None

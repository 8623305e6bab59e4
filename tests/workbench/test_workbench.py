"""The workbench over HTTP: all operations, persistent drafts and refusals."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import promptboost
from promptboost.data.shots import load_task
from promptboost.errors import RunError
from promptboost.llm.client import ModelSettings
from promptboost.model import PromptEnsemble, load
from promptboost.model.edits import Change
from promptboost.run.edit import edit_run
from promptboost.run.holdout import open_held_out
from promptboost.run.refit import refit_run
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Lineage
from promptboost.workbench.state import draft_folder, only_editor
from tests.llm.llm_server import Act
from tests.llm.llm_server import Server as ModelServer
from tests.serve.server_tools import png
from tests.workbench.workbench_tools import on_workbench

REDDISH = "something red"


@pytest.fixture
def bench(bench_run):
    with on_workbench(bench_run) as client:
        client.run = bench_run
        yield client


def removable(client, name):
    reasons = client.get("/api/reasons").json
    return [text for text, counts in reasons["sentences"][name].items() if counts is not None]


def test_the_figures_after_each_edit_are_those_of_the_edited_run(bench):
    """Use each operation; the saved run predicts as the page showed."""
    state = bench.state
    assert state["effect"]["before"] == state["effect"]["after"]
    assert state["undo"] == 0
    bench.edit("add", name="sea", sentence=REDDISH, share=0.7)
    assert bench.sentences("sea")[REDDISH] == pytest.approx(0.7, abs=0.002)
    assert bench.state["effect"]["changed"] > 0
    bench.edit("weight", name="sea", sentence=REDDISH, share=0.4)
    assert bench.sentences("sea")[REDDISH] == pytest.approx(0.4, abs=0.002)
    bench.edit("replace", name="sea", sentence=REDDISH, to="warm red light")
    assert REDDISH not in bench.sentences("sea")
    bench.edit("rename-class", name="leaf", to="grass")
    assert bench.of_class("grass")["was"] == "leaf"
    bench.edit("add-class", name="fog", sentences=["nothing but grey"])
    assert bench.of_class("fog")["count"] == 0
    bench.edit("drop-class", name="night")
    assert bench.state["effect"]["left_out"] > 0
    assert "night" not in [item["name"] for item in bench.state["classes"]]
    bench.edit("remove", name="sea", sentence="warm red light")
    effect, expected = bench.state["effect"], bench.state["classes"]
    saved = bench.step("/api/save", reason="a test").json
    new = bench.run.parent / "run-v2"
    assert saved["saved_as"] == str(new)
    assert saved["saved"] == "run-v2"
    lineage = Lineage.read(new)
    assert [edit.reason for edit in lineage.edits] == ["a test"]
    assert len(lineage.changes) == 7
    ensemble = PromptEnsemble.load(new / "ensemble.json")
    for item in expected:
        shares = {one["text"]: one["share"] for one in item["sentences"]}
        assert ensemble.prompts(item["name"]) == pytest.approx(shares)
    images = open_held_out(bench.run, cache=False)
    names = {"leaf": "grass"}
    kept = [k for k, label in enumerate(images.labels) if images.class_names[label] != "night"]
    root = images.data.images[0].source.parents[1]
    answers = promptboost.load(new, cache=False).predict(
        [str(root / images.images[k]) for k in kept]
    )
    labels = [images.class_names[images.labels[k]] for k in kept]
    right = [a == names.get(b, b) for a, b in zip(answers, labels, strict=True)]
    assert effect["images"] == len(kept)
    assert effect["after"] == pytest.approx(np.mean(right))
    assert (new / "report.html").exists()


def test_undo_and_redo_give_the_very_same_text(bench):
    texts = [bench.workbench.ensemble.to_json()]
    bench.edit("add", name="sea", sentence=REDDISH, share=0.5)
    texts.append(bench.workbench.ensemble.to_json())
    bench.edit("rename-class", name="leaf", to="grass")
    texts.append(bench.workbench.ensemble.to_json())
    figures = bench.state["effect"]
    bench.step("/api/undo")
    assert bench.workbench.ensemble.to_json() == texts[1]
    bench.step("/api/undo")
    assert bench.workbench.ensemble.to_json() == texts[0]
    assert bench.state["step"]["message"].startswith("undone: ")
    assert bench.step("/api/undo", 422).error == "there is nothing to undo"
    bench.step("/api/redo")
    bench.step("/api/redo")
    assert bench.workbench.ensemble.to_json() == texts[2]
    assert bench.state["effect"] == figures
    bench.step("/api/undo")
    bench.edit("add", name="leaf", sentence="a blade of grass")
    bench.step("/api/redo", 422)  # another way was taken


@pytest.mark.parametrize("added", [False, True])
def test_flips_and_influences_are_exact(bench, added):
    """The reported influence is that of removing the sentence, also with a class without images."""
    if added:
        bench.edit("add-class", name="fog", sentences=["nothing but grey", "something green"])
    reasons = bench.get("/api/reasons").json
    before = bench.state["effect"]["after"]
    images = bench.state["effect"]["images"]
    tried = 0
    for name, sentences in reasons["sentences"].items():
        assert list(sentences)
        assert set(sentences) == set(bench.sentences(name))
        for text, counts in list(sentences.items())[:2]:
            if counts is None:
                assert (
                    "nothing else is in"
                    in bench.edit("remove", 422, name=name, sentence=text).error
                )
                continue
            mended, broken, changed = counts
            bench.edit("remove", name=name, sentence=text)
            step = bench.state["step"]
            assert (step["mended"], step["broken"], step["changed"]) == (mended, broken, changed)
            after = bench.state["effect"]["after"]
            assert after == pytest.approx(before + (mended - broken) / images)
            if not added:
                assert len(bench.state["effect"]["flips"]) == changed
            bench.step("/api/undo")
            tried += 1
    assert tried
    wrong = sum(item["count"] for item in reasons["confusions"])
    assert wrong == round((1 - before) * images)


def test_an_image_is_explained_and_follows_the_edits(bench):
    reply = bench.ask("POST", "/api/image", png((210, 40, 60)), headers={"X-Name": "my%20fire.png"})
    why = reply.json
    assert reply.status == 200
    assert why["image"] == "my fire.png"
    assert sum(group["value"] for group in why["groups"]) == pytest.approx(why["margin"], abs=1e-9)
    bench.edit("rename-class", name=why["answer"], to="another name")
    again = bench.post_json("/api/explain", {"dropped": why["id"]}).json
    assert again["answer"] == "another name"
    assert again["margin"] == pytest.approx(why["margin"], abs=1e-6)
    assert again["revision"] == bench.state["revision"]
    image = bench.workbench.held_out.images[0]
    held = bench.post_json("/api/explain", {"image": image}).json
    assert held["held_out"]
    assert held["label"] is not None
    small = bench.get(f"/api/thumbnail?image={image}")
    assert (small.status, small.headers["content-type"]) == (200, "image/jpeg")
    assert small.body.startswith(b"\xff\xd8")


def test_a_draft_outlives_the_server_and_another_fit_has_another(bench_run):
    with on_workbench(bench_run) as client:
        client.edit("add", name="sea", sentence=REDDISH, share=0.5)
        client.edit("rename-class", name="leaf", to="grass")
        client.step("/api/undo")
        state = client.state
    with on_workbench(bench_run) as client:
        assert client.state["restored"]
        for name in ("revision", "undo", "redo", "classes", "effect"):
            assert client.state[name] == state[name], name
        client.step("/api/redo")
        assert client.of_class("grass")["was"] == "leaf"
        assert client.state["looks"] == Lineage.read(bench_run).looks + client.workbench.draft.looks
    looks = Lineage.read(bench_run).looks
    assert (
        looks == 2
    )  # the run, and one edit: a new name answers the same, and nothing counts twice
    other = bench_run.parent / "other"
    edit_run(bench_run, [Change(kind="drop-class", class_name="sea")], other, cache=False)
    with on_workbench(other) as client:
        assert (client.state["undo"], client.state["restored"]) == (0, False)


def test_an_edit_that_cannot_be_kept_is_not_made(bench):
    bench.edit("add", name="sea", sentence=REDDISH, share=0.5)
    before, folder = bench.state, bench.workbench.folder
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("a file in the place of the folder")
    reply = bench.edit("drop-class", 507, name="sea")
    assert "nothing was lost" in reply.error
    folder.unlink()
    folder.with_name("elsewhere").rename(folder)
    assert bench.read() == before
    bench.edit("drop-class", name="sea")


def test_two_tabs_share_the_draft_and_the_older_is_told(bench):
    seen = dict(bench.state)
    bench.edit("add", name="sea", sentence=REDDISH, share=0.5)
    for path, body in (
        ("/api/edit", {"change": {"kind": "drop-class", "class": "sea"}}),
        ("/api/undo", {}),
        ("/api/save", {"reason": "stale"}),
    ):
        reply = bench.post_json(path, {"revision": seen["revision"], **body})
        assert reply.status == 409
        assert reply.json["revision"] == bench.state["revision"]
        assert "edited elsewhere" in reply.json["error"]
    assert bench.get("/api/revision").json["revision"] == bench.state["revision"]
    assert not (bench.run.parent / "run-v2").exists()
    assert bench.read()["undo"] == 1


def test_an_added_sentence_survives_a_refit(bench):
    bench.edit("add", name="sea", sentence=REDDISH, share=0.6)
    bench.step("/api/save", reason="it can be red")
    new = bench.run.parent / "refitted"
    refit_run(bench.run.parent / "run-v2", output=new, cache=False)
    refitted = promptboost.load(new).ensemble
    assert refitted.pinned == {"sea": (REDDISH,)}
    assert refitted.prompts("sea")[REDDISH] == pytest.approx(0.6, abs=0.02)


def test_versions_are_new_runs_that_stay_and_are_compared(bench):
    files = {
        path.name: path.read_bytes() for path in bench.run.iterdir() if path.name != "edits.json"
    }
    assert bench.step("/api/save", 422).error.startswith("there is nothing to save")
    bench.edit("add", name="sea", sentence=REDDISH, share=0.6)
    bench.step("/api/save", reason="first")
    assert "saved already, as run-v2" in bench.step("/api/save", 422).error
    first = {path.name: path.read_bytes() for path in (bench.run.parent / "run-v2").iterdir()}
    bench.edit("drop-class", name="night")
    for bad in ("../away", "", "a/b", ".hidden", "run-v2", "x" * 200, "nul\0"):
        reply = bench.step("/api/save", 422 if bad else 200, name=bad)
        if bad:
            assert reply.json["error"]
    assert [one["name"] for one in bench.read()["versions"]] == ["run-v2", "run-v3"]
    found = bench.post_json("/api/compare", {"before": "run", "after": "run-v2"}).json
    assert list(found["difference"]["classes"]) == ["sea"]
    assert list(found["difference"]["classes"]["sea"]["added"]) == [REDDISH]
    accuracy = Lineage.read(bench.run.parent / "run-v2").edits[-1].after
    assert found["effect"]["after"] == pytest.approx(accuracy)
    found = bench.post_json("/api/compare", {"before": "run-v2", "after": "draft"}).json
    assert found["difference"]["removed_classes"] == ["night"]
    assert bench.post_json("/api/compare", {"before": "run", "after": "none"}).status == 422
    assert {
        path.name: path.read_bytes() for path in (bench.run.parent / "run-v2").iterdir()
    } == first
    assert {
        path.name: path.read_bytes() for path in bench.run.iterdir() if path.name != "edits.json"
    } == files


def test_sentences_of_a_model_are_measured_before_they_are_taken(bench_run):
    def script(question, time):
        name = "ember" if "names the ember" in question or "only the ember" in question else "sea"
        return Act(text=f"A {name} is bright red.\nThe {name} looks warm and red.")

    pytest.importorskip("openai")
    with ModelServer(script) as models:
        settings = ModelSettings("a-model", "openai", models.url)
        with on_workbench(bench_run, model=settings) as client:
            assert client.state["model"] == "a-model"
            looks = client.state["looks"]
            grown = client.post_json("/api/grow", {"one": "ember", "other": "sea"})
            assert grown.status == 200, grown.body
            items = grown.json["suggestions"]
            assert {item["class"] for item in items} <= {"ember", "sea"}
            gains = [item["after"] - item["before"] for item in items]
            assert gains == sorted(gains, reverse=True)
            assert grown.json["looks"] == looks + len(items)
            assert client.read()["undo"] == 0
            item = items[-1]
            client.edit("add", name=item["class"], sentence=item["text"], share=item["share"])
            assert client.state["effect"]["after"] == pytest.approx(item["after"])
            assert client.state["looks"] == looks + len(items)
            assert client.post_json("/api/grow", {"one": "ember", "other": "nobody"}).status == 422


def test_without_a_model_it_is_told_how_to_have_one(bench):
    assert bench.state["model"] is None
    reply = bench.post_json("/api/grow", {"one": "ember", "other": "sea"})
    assert (reply.status, reply.error) == (
        422,
        "no language model is configured: start with --model NAME",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "remove", "class": "sea", "sentence": "never there"}, "no prompt"),
        ({"kind": "remove", "class": "nobody", "sentence": "x"}, "no class"),
        (
            {"kind": "weight", "class": "sea", "sentence": "something blue", "share": 2},
            "between 0 and 1",
        ),
        ({"kind": "add", "class": "sea", "sentence": " "}, "sentence is needed"),
        ({"kind": "rename-class", "class": "sea", "to": "leaf"}, "already"),
        ({"kind": "add-class", "class": "sea", "sentences": ["x"]}, "already"),
        ({"kind": "add-class", "class": "fog", "sentences": []}, ""),
        ({"kind": "explode"}, "request is invalid"),
        ({"kind": "add", "class": ["sea"]}, "request is invalid"),
        ("remove", "request is invalid"),
        (None, "request is invalid"),
    ],
)
def test_bad_edits_change_nothing_and_say_why(bench, change, words):
    before = bench.state
    reply = bench.post_json("/api/edit", {"revision": 0, "change": change})
    assert reply.status == 422
    assert words in reply.error
    assert bench.read() == {**before, "looks": bench.state["looks"]}


def test_bad_requests_are_refused(bench):
    strange = bench.ask("POST", "/api/edit", b"\xff{", "application/json")
    assert strange.status == 422
    deep = bench.ask("POST", "/api/edit", b"[" * 100_000)
    assert deep.status == 422
    long = bench.post_json(
        "/api/edit", {"revision": 0, "change": {"kind": "add", "to": "x" * 300_000}}
    )
    assert long.status == 413
    assert bench.ask("POST", "/api/image", b"no image").status == 422
    assert bench.get("/api/thumbnail?image=../../etc/passwd").status == 422
    assert bench.post_json("/api/explain", {"dropped": "unknown"}).status == 422
    assert bench.get("/nothing").status == 404
    assert bench.get("/api/edit").status == 405
    assert bench.read()["undo"] == 0


def test_images_have_limits(bench_run):
    with on_workbench(bench_run, limits={"max_bytes": 20_000}) as client:
        assert client.ask("POST", "/api/image", b"x" * 30_000).status == 413
        bomb = png("white", (8000, 8000))
    with on_workbench(bench_run, limits={"max_image_memory": 2**20}) as client:
        reply = client.ask("POST", "/api/image", bomb)
        assert reply.status == 413, reply.body
        assert "memory" in reply.error or "large" in reply.error


def test_other_pages_and_names_do_not_get_in(bench):
    api = ["/api/state", "/api/revision", "/api/reasons", "/api/thumbnail?image=x"]
    for path in api:
        assert bench.get(path, headers={"Authorization": "Bearer wrong"}).status == 401
        assert bench.get(path, headers={"Host": "evil.example"}).status == 421
    change = {"revision": 0, "change": {"kind": "drop-class", "class": "sea"}}
    for path in ("/api/edit", "/api/undo", "/api/save", "/api/image", "/api/grow", "/api/compare"):
        reply = bench.post_json(path, change, headers={"Origin": "http://evil.example"})
        assert reply.status == 403
        assert bench.post_json(path, change, headers={"Authorization": ""}).status == 401
    for path, kind in (
        ("/", "text/html"),
        ("/workbench.css", "text/css"),
        ("/workbench.js", "text/javascript"),
    ):
        page = bench.get(path, headers={"Authorization": ""})
        assert page.status == 200
        assert page.headers["content-type"].startswith(kind)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert bench.get(path, headers={"Host": "evil.example"}).status == 421
    assert bench.read()["undo"] == 0


def test_the_page_is_small_and_loads_nothing_from_elsewhere(bench):
    sizes, text = 0, ""
    for path in ("/", "/workbench.css", "/workbench.js"):
        body = bench.get(path).body
        sizes, text = sizes + len(body), text + body.decode()
    assert sizes < 60_000
    for word in ("http://", "https://", "innerHTML", "insertAdjacentHTML", "eval(", "onclick="):
        assert word not in text


def test_there_is_one_workbench_of_a_draft(bench):
    folder = draft_folder(bench.run, bench.workbench.held_out.ensemble.fingerprint)
    found = []

    def enter():
        try:
            with only_editor(folder):
                found.append("in")
        except RunError as error:
            found.append(str(error))

    import threading

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "another workbench" in found[0]


def test_a_run_that_was_fitted_anew_meanwhile_is_not_saved_over(bench):
    bench.edit("add", name="sea", sentence=REDDISH, share=0.6)
    path = bench.run / "ensemble.json"
    record = json.loads(path.read_text())
    record["history"] = ["edited by hand"]
    path.write_text(json.dumps(record))
    assert "has changed since the workbench was opened" in bench.step("/api/save", 422).error
    assert not (bench.run.parent / "run-v2").exists()


def test_a_damaged_draft_is_not_thrown_away(bench_run):
    with on_workbench(bench_run) as client:
        folder = client.workbench.folder
    (folder / "draft.json").write_text('{"run": 1')
    with (
        pytest.raises(promptboost.errors.FileFormatError, match="move it away"),
        on_workbench(bench_run),
    ):
        pass
    assert (folder / "draft.json").read_text() == '{"run": 1'
    shutil.rmtree(folder)


# --- labels ----------------------------------------------------------------------------------


def training_labels(run):
    folder = RunFolder(run)
    images = load_task(folder.source, folder.settings).learn.images
    return {str(Path(image.source).resolve()): image.label for image in images}


def test_a_suggested_image_becomes_a_training_image(labeled):
    before = training_labels(labeled.folder / "run")
    review = labeled.post_json("/api/review", {}).json
    assert review["saved"] is None
    images = [one["image"] for one in review["suggestions"]]
    assert len(set(images)) == 12
    assert labeled.get(f"/api/thumbnail?image={images[0]}").status == 200
    review = labeled.post_json("/api/label", {"image": images[0], "label": "leaf"}).json
    assert (review["saved"], review["changes"]) == ("run-v2", 1)
    assert images[0] not in [one["image"] for one in review["suggestions"]]
    review = labeled.post_json("/api/label", {"image": images[1], "label": "sea"}).json
    after = training_labels(labeled.folder / "run-v2")
    assert len(after) == len(before) + 2
    new = {name.rsplit("/", 1)[-1]: label for name, label in after.items() if "new/" in name}
    assert sorted(new.values()) == ["leaf", "sea"]
    assert training_labels(labeled.folder / "run") == before
    results = RunFolder(labeled.folder / "run-v2").results
    assert review["fit"]["accuracy"] == results.measured()
    assert load(labeled.folder / "run-v2", cache=False).head.least_logit() is not None


def test_a_wrong_label_is_found_changed_and_dropped(labeled):
    assert labeled.post_json("/api/review", {}).json["findings"] is None
    findings = labeled.post_json("/api/review", {"search": True}).json["findings"]
    wrong = {f["image"] for f in findings if f["label"] == "ember" and f["suggested"] == "sea"}
    assert {Path(image).name for image in wrong} & {"40.png", "50.png"}
    image = sorted(wrong)[0]
    review = labeled.post_json("/api/label", {"image": image, "label": "sea"}).json
    assert image not in {f["image"] for f in review["findings"]}
    labels = training_labels(labeled.folder / "run-v2")
    assert labels[image] == "sea"
    leaf = next(name for name in training_labels(labeled.folder / "run") if "leaf" in name)
    assert labeled.post_json("/api/label", {"image": leaf}).status == 200
    dropped = training_labels(labeled.folder / "run-v2")
    assert len(dropped) == len(labels) - 1


def test_an_image_of_no_class_is_not_suggested_again(labeled):
    first = labeled.post_json("/api/review", {}).json["suggestions"][0]["image"]
    review = labeled.post_json("/api/label", {"image": first}).json
    assert (review["saved"], review["changes"], len(review["suggestions"])) == (None, 0, 12)
    review = labeled.post_json(
        "/api/label", {"image": review["suggestions"][0]["image"], "label": "sea"}
    )
    assert first not in [one["image"] for one in review.json["suggestions"]]


def test_without_held_out_images_labels_and_sentences_can_be_edited(unmeasured):
    run = unmeasured.folder / "run"
    state, thresholds = unmeasured.state, RunFolder(run).results.thresholds
    assert (state["effect"]["images"], state["looks"]) == (0, 0)
    assert state["fit"] == {"accuracy": thresholds.accuracy, "images": 8, "held_out": False}
    assert unmeasured.get("/api/reasons").json["confusions"] == []
    unmeasured.edit("add", name="sea", sentence="a calm bay", share=0.3)
    assert unmeasured.state["effect"]["after"] is None
    unmeasured.step("/api/undo")
    unmeasured.step("/api/redo")
    unmeasured.step("/api/save")
    compared = unmeasured.post_json("/api/compare", {"before": "run", "after": "run-v2"}).json
    assert "a calm bay" in compared["difference"]["classes"]["sea"]["added"]
    assert unmeasured.read()["looks"] == 0
    refitted = unmeasured.post_json("/api/refit", {"name": "run-v2"}).json
    assert (refitted["images"], refitted["held_out"]) == (8, False)
    assert unmeasured.post_json("/api/explain", {"dropped": "x"}).status == 422
    image = unmeasured.post_json("/api/review", {}).json["suggestions"][0]["image"]
    review = unmeasured.post_json("/api/label", {"image": image, "label": "sea"}).json
    assert (review["saved"], review["fit"]["images"]) == ("run-v3", 9)
    assert Lineage.read(run).looks == 0


def test_the_last_image_to_label(unmeasured):
    folder = unmeasured.folder / "new"
    for path in sorted(folder.iterdir())[1:]:
        path.unlink()
    (image,) = unmeasured.post_json("/api/review", {}).json["suggestions"]
    answer = unmeasured.post_json("/api/label", {"image": image["image"], "label": "leaf"})
    assert (answer.status, answer.json["suggestions"]) == (200, [])


def test_a_label_that_cannot_be_given_changes_nothing(labeled):
    task = load_task(str(labeled.folder / "images"), RunFolder(labeled.folder / "run").settings)
    for message, problem in (
        ({"image": "no.png", "label": "sea"}, "there is no image"),
        ({"image": str(task.learn.images[0].source), "label": "cow"}, "there is no class"),
        ({"image": str(task.held_out.images[0].source), "label": "sea"}, "is held out"),
    ):
        refused = labeled.post_json("/api/label", message)
        assert refused.status == 422
        assert problem in refused.json["error"]
    assert not list(labeled.folder.glob("run-v2*"))


@pytest.mark.parametrize("sentence", ["\u200b", "\u3164 \u2060"])
def test_sentences_that_nobody_sees_are_refused(bench, sentence):
    change = {"kind": "add", "class": "sea", "sentence": sentence}
    reply = bench.post_json("/api/edit", {"revision": 0, "change": change})
    assert reply.status == 422
    assert "only invisible characters" in reply.error


def test_letters_that_look_alike_are_told(bench):
    bench.edit("add", name="sea", sentence="a gla\u0441ier\u200b")
    assert "a gla\u0441ier" in bench.sentences("sea")
    assert r"not all Latin: 'gla\u0441ier'" in bench.state["step"]["message"]

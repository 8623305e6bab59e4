import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import numpy as np
import pytest

from promptboost import load
from promptboost.errors import SettingError
from promptboost.model import PromptEnsemble
from promptboost.serve.service import named_runs
from tests.serve.server_tools import SLOW, SlowEncoder, png, running, text_of, write_run


def classes(record):
    return {choice["class"]: choice["probability"] for choice in record["top"]}


def test_every_way_to_send_an_image_has_the_answer_of_the_classifier(server, world):
    classifier = load(world / "colors", cache=False)
    paths = sorted((world / "images").rglob("*.png"))[::5]
    files = [path.read_bytes() for path in paths]
    expected = classifier.predict_proba(paths)
    answers = [
        server.post_form("/predict", *files, top_k=4),
        server.post_form("/predict?top_k=1", *files, top_k=4),
        server.post_form("/predict?top_k=4", *files),
        server.post_json("/predict?top_k=4", {"images": [text_of(file) for file in files]}),
        server.post_json("/predict", {"images": [text_of(file) for file in files], "top_k": 4}),
        server.post_json(
            "/runs/colors/predict",
            {
                "images": [
                    {"name": "a", "data": f"data:image/png;base64,{text_of(f)}"} for f in files
                ]
            }
            | {"top_k": 4},
        ),
    ]
    alone = [
        server.ask("POST", "/predict?top_k=4", file, "image/png").json["predictions"][0]
        for file in files
    ]
    for predictions in [*[answer.json["predictions"] for answer in answers], alone]:
        given = [[classes(one)[name] for name in classifier.class_names] for one in predictions]
        np.testing.assert_allclose(given, expected, atol=1e-6)
        best = [classifier.class_names[k] for k in expected.argmax(axis=1)]
        assert [one["predicted"] for one in predictions] == best
        assert all(one["top"][0]["class"] == one["predicted"] for one in predictions)
    assert answers[0].json["predictions"][0]["image"] == "0.png"
    assert answers[-1].json["predictions"][0]["image"] == "a"
    assert answers[0].json["run"] == "colors"


def test_embeddings_have_the_predictions_of_their_images(server, world):
    classifier = load(world / "colors", cache=False)
    paths = sorted((world / "images").rglob("*.png"))[::7]
    expected = classifier.predict_proba(paths)
    rows = classifier.embedder.originals(paths).astype(np.float64)
    for scale in (1, 8, 1e-30, 1e30):
        message = {"embeddings": (scale * rows).tolist(), "top_k": 4}
        answer = server.post_json("/predict", message).json
        assert ("warning" in answer) == (scale != 1)
        assert (answer["run"], answer["version"]) == ("colors", 1)
        predictions = answer["predictions"]
        given = [[classes(one)[name] for name in classifier.class_names] for one in predictions]
        np.testing.assert_allclose(given, expected, atol=1e-6)
        assert [one["predicted"] for one in predictions] == classifier.predict(paths).tolist()
        assert predictions[1]["image"] == "embedding 2"
    message = {"embeddings": rows[:1].tolist(), "min_probability": 1, "explain": True}
    (unsure,) = server.post_json("/runs/colors/predict", message).json["predictions"]
    assert (unsure["predicted"], unsure["unsure"]) == (None, True)
    assert unsure["explanation"]["image"] == "embedding 1"


def test_embeddings_that_cannot_be_used(server):
    row = [1.0] * 32
    assert server.post_json("/predict", {"embeddings": [row]}).status == 200
    for embeddings in (
        [],
        [[]],
        row,
        [row[:-1]],
        [row, row[:-1]],
        [[row]],
        [[*row, 1.0], row[:-1]],
        [row] * 65,
        [[0.0] * 32],
        *([[*row[:-1], wrong]] for wrong in ("a", None, True, [], float("nan"))),
        {},
        "no",
        None,
    ):
        answer = server.post_json("/predict", {"embeddings": embeddings})
        assert answer.status in (400, 422), embeddings
        assert answer.error
    answer = server.post_json("/predict", {"embeddings": [row, [0.0] * 32]})
    assert "embeddings are all zero, the first is row 1" in answer.error
    for record in ({"embeddings": [row], "images": [text_of(png())]}, {"top_k": 1}):
        assert server.post_json("/predict", record).error == "send either images or embeddings"


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("top_k=2", {"top_k": 1}),
        ("min_probability=1", {"min_probability": 0}),
        ("explain=true", {"explain": False}),
    ],
)
def test_what_the_body_says_wins_over_the_address_though_it_is_the_default(
    server, address, written
):
    message = {"images": [text_of(png("red"))]}
    plain = server.post_json("/predict", message).json
    assert server.post_json(f"/predict?{address}", message).json != plain
    assert server.post_json(f"/predict?{address}", message | written).json == plain


def test_labels_and_scores_alone(server):
    whole = server.post_form("/predict?top_k=2", png("red")).json["predictions"][0]["top"]
    short = server.post_form("/predict?top_k=2&labels=true", png("red")).json
    assert short == [[{"label": b["class"], "score": b["probability"]} for b in whole]]
    message = {"images": [text_of(png("red")), text_of(b"no image")], "labels": True}
    assert [len(answer) for answer in server.post_json("/predict", message).json] == [1, 0]


def test_an_answer_below_the_least_probability_is_unsure(server):
    sure = server.post_form("/runs/saved/predict", png("red"), min_probability=0.5).json
    unsure = server.post_form("/runs/saved/predict", png("red"), min_probability=1).json
    assert sure["predictions"][0]["predicted"] == "fire"
    assert not sure["predictions"][0]["unsure"]
    assert unsure["predictions"][0]["predicted"] is None
    assert unsure["predictions"][0]["unsure"]
    assert classes(unsure["predictions"][0]) == classes(sure["predictions"][0])


def test_an_image_that_cannot_be_read_has_an_error_beside_the_others(server):
    both = server.post_form("/predict", ("bad.png", png()[:40]), png("blue"))
    assert both.status == 200
    bad, good = both.json["predictions"]
    assert bad["image"] == "bad.png"
    assert bad["predicted"] is None
    assert bad["error"] == "not an image of a known kind"
    assert good["error"] is None
    none = server.post_form("/predict", ("bad.png", b""), ("worse.png", b"no"))
    assert none.status == 422
    assert none.error == "bad.png: the file is empty"


def test_requests_that_cannot_be_used(server):
    image = text_of(png())
    for record, status, words in [
        ({"images": []}, 422, "length >= 1"),
        ({"images": [3]}, 422, "images"),
        ({}, 422, "images"),
        ({"images": [image], "top_k": 0}, 422, "top_k"),
        ({"images": [image], "top_k": "many"}, 422, "top_k"),
        ({"images": [image], "min_probability": 2}, 422, "min_probability"),
        ({"images": [image], "color": 1}, 422, "color"),
        ({"images": ["no base64!"]}, 422, "not base64"),
    ]:
        answer = server.post_json("/predict", record)
        assert (answer.status, words in answer.error) == (status, True), (record, answer)
    assert server.ask("POST", "/predict", b"{", "application/json").status == 400
    assert server.ask("POST", "/predict", b"a", "multipart/form-data").status == 400
    assert server.ask("POST", "/predict", b"a", "text/plain").status == 415
    assert server.ask("POST", "/predict").status == 415
    assert "no image" in server.post_form("/predict", top_k=1).error
    assert "size" in server.post_form("/predict", png(), size=1).error
    assert server.post_json("/runs/none/predict", {"images": [image]}).status == 404
    assert server.get("/nowhere").error.startswith(
        "there is nothing at this address; see /openapi.json"
    )
    assert server.get("/predict").error == "this address takes POST; see /openapi.json"
    assert server.get("/predict").status == 405


def test_runs_with_one_encoder_share_its_batches(world, monkeypatch):
    monkeypatch.setattr(SlowEncoder, "batches", [])
    runs = {"colors": world / "colors", "saved": world / "saved"}
    with running(runs, encoder=SLOW) as client, ThreadPoolExecutor(8) as threads:
        batchers = {id(run.current.batcher) for run in client.service.runs.values()}
        assert len(batchers) == 1
        paths = ["/runs/colors/predict", "/runs/saved/predict"] * 8
        answers = list(threads.map(lambda path: client.post_form(path, png("red")), paths))
    predicted = [answer.json["predictions"][0]["predicted"] for answer in answers]
    assert set(predicted[1::2]) == {"fire"}
    assert set(predicted[::2]) == {"ember"}
    assert sum(SlowEncoder.batches) == 16
    assert len(SlowEncoder.batches) < 10  # the first goes alone, later ones together


def test_what_is_told_about_runs(server, world):
    ensemble = PromptEnsemble.load(world / "colors/ensemble.json")
    listed = server.get("/runs").json["runs"]
    assert [run["name"] for run in listed] == ["colors", "saved"]
    told = server.get("/runs/colors").json
    assert told == listed[0]
    assert told["classes"] == list(ensemble.class_names)
    assert told["sentences"] == ensemble.n_prompts
    assert told["residual"]
    assert not listed[1]["residual"]
    assert told["version"] == 1
    assert told["digest"] != listed[1]["digest"]
    sentences = server.get("/runs/colors/sentences").json["classes"]
    assert {
        name: {one["prompt"]: one["weight"] for one in rows} for name, rows in sentences.items()
    } == {name: ensemble.prompts(name) for name in ensemble.class_names}


def test_the_card(server, world):
    card = server.get("/runs/colors/card")
    assert card.headers["content-type"].startswith("text/markdown")
    assert card.body.decode() == (world / "colors/README.md").read_text()
    assert "never measured" in server.get("/runs/saved/card").error


def test_names_of_strangers_are_escaped(tmp_path):
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run", name="<script>alert(1)</script>")
    with running({"run": tmp_path / "run"}) as client:
        answer = client.post_form("/predict", (b'<b>"'.decode(), png("blue")))
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json["predictions"][0]["predicted"] == "<script>alert(1)</script>"


def test_health_and_metrics(server):
    assert server.get("/healthz").json == {"state": "alive"}
    assert server.get("/readyz").json == {"state": "ready"}
    before = metric(server, 'promptboost_images_total{run="saved"}')
    assert server.post_form("/runs/saved/predict", png(), png()).status == 200
    assert server.post_form("/runs/saved/predict", b"").status == 422
    text = server.get("/metrics").body.decode()
    assert metric(server, 'promptboost_images_total{run="saved"}') == before + 2
    route = '/runs/{name}/predict"'
    for name in (
        f'promptboost_requests_total{{method="POST",route="{route},status="422"}}',
        f'promptboost_request_seconds_count{{route="{route}}}',
        'promptboost_batch_images_count{encoder="fake:32-0"}',
        'promptboost_rejected_total{reason="image"}',
    ):
        assert metric(server, name) >= 1, name
    assert metric(server, 'promptboost_queue_images{encoder="fake:32-0"}') == 0
    assert "# TYPE promptboost_request_seconds histogram" in text
    server.get("/a-path-that-a-stranger-made-up")
    assert "made-up" not in server.get("/metrics").body.decode()


def metric(server, name):
    text = server.get("/metrics").body.decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_openapi_describes_what_is_there(server):
    description = server.get("/openapi.json").json
    assert description["openapi"].startswith("3.1")
    schemas = description["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description)))
    assert references <= set(schemas)
    assert {"PredictMessage", "PredictAnswer", "Prediction"} <= references
    told = {"components": {"schemas": schemas}}

    def check(name, value):
        jsonschema.validate(value, {**told, "$ref": f"#/components/schemas/{name}"})

    check("PredictAnswer", server.post_form("/predict", png(), b"bad").json)
    check("RunsAnswer", server.get("/runs").json)
    check("RunAnswer", server.get("/runs/saved").json)
    check("SentencesAnswer", server.get("/runs/saved/sentences").json)
    check("ErrorAnswer", server.post_form("/predict", b"").json)
    check("PredictMessage", {"embeddings": [[0.5, 1]]})
    check("PredictMessage", {"images": [text_of(png()), {"data": "", "name": "a"}], "top_k": 2})
    for address, operations in description["paths"].items():
        if "{" not in address and "get" in operations:
            assert server.get(address).status == 200, address


def test_explain_adds_what_each_sentence_contributes(server):
    answer = server.post_form("/predict", ("mine.png", png()), explain="true")
    explanation = answer.json["predictions"][0]["explanation"]
    assert explanation["image"] == "mine.png"
    values = [group["value"] for group in explanation["groups"]]
    assert sum(values) == pytest.approx(explanation["margin"], abs=1e-9)
    assert "explanation" not in server.post_form("/predict", png()).json["predictions"][0]


def test_names_of_runs(tmp_path):
    assert list(named_runs(["runs/my pets", "old=runs/my pets"])) == ["my-pets", "old"]
    with pytest.raises(SettingError, match="two runs are called pets"):
        named_runs(["a/pets", "b/pets"])


def test_images_are_rejected_and_have_sets_of_classes(server, world):
    classifier = load(world / "colors", cache=False)
    paths = sorted((world / "images").rglob("*.png"))[::3]
    files = [path.read_bytes() for path in paths]
    answer = server.post_form("/predict?accept=0.5&coverage=0.9", *files).json["predictions"]
    expected = classifier.predict(paths, reject=True, accept=0.5).tolist()
    assert [one["predicted"] for one in answer] == expected
    assert [one["rejected"] for one in answer] == [one is None for one in expected]
    assert [one["prediction_set"] for one in answer] == classifier.prediction_sets(paths, 0.9)
    assert "rejected" not in server.post_form("/predict", files[0]).json["predictions"][0]
    refused = server.post_form("/runs/saved/predict?accept=0.95", files[0])
    assert refused.status == 422
    assert "no cross-validated training images" in refused.json["error"]
    assert server.post_form("/predict?coverage=7", files[0]).status == 422


def test_class_priors_apply_to_all_images_of_a_request(server, world):
    classifier = load(world / "colors", cache=False)
    paths = sorted((world / "images").rglob("*.png"))
    files, rows = [path.read_bytes() for path in paths], classifier.embedder.originals(paths)
    first, second = classifier.class_names[:2]
    priors = {first: 3, second: 1}
    expected = classifier.predict_proba(paths, class_priors=priors)
    plain = classifier.predict(paths).tolist()
    text = json.dumps(priors)
    for answer in (
        server.post_form("/predict?top_k=4", *files, class_priors=text),
        server.post_json(
            "/predict", {"embeddings": rows.tolist(), "class_priors": priors, "top_k": 4}
        ),
    ):
        predictions = answer.json["predictions"]
        given = [[classes(one)[name] for name in classifier.class_names] for one in predictions]
        np.testing.assert_allclose(given, expected, atol=1e-5)
        assert [one["unadjusted"] for one in predictions] == plain
        changed = [one["predicted"] != one["unadjusted"] for one in predictions]
        assert answer.json["changed"] == sum(changed) > 0
        assert "warning" not in answer.json
    equal = server.post_form("/predict", *files[:3], b"poison", class_priors="equal").json
    assert "3 images of 4 classes are too few" in equal["warning"]
    assert equal["predictions"][3]["error"]
    assert "changed" not in server.post_form("/predict", files[0]).json


@pytest.mark.parametrize(
    ("priors", "status", "problem"),
    [
        ("most", 422, "class_priors"),
        ({"cow": 1}, 422, "classes that do not exist: cow"),
        ({"sea": -1}, 422, "class_priors"),
        ({"sea": 0}, 422, "not all zero"),
        ({"sea": 1e308, "leaf": 1e308}, 422, "must be numbers"),
        ({"sea": "a"}, 422, "class_priors"),
        ({f"class {k}": 1 for k in range(30_000)}, 413, "too large"),
    ],
)
def test_class_priors_that_cannot_be_used(server, priors, status, problem):
    image = text_of(png())
    answer = server.post_json("/predict", {"images": [image], "class_priors": priors})
    assert answer.status == status
    assert problem in answer.json["error"]
    if not isinstance(priors, str) and status == 422:
        assert server.post_form("/predict", png(), class_priors=json.dumps(priors)).status == 422

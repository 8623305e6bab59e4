"""The Open Inference Protocol, as its documents have it."""

import numpy as np

from promptboost import load
from tests.serve.server_tools import png, text_of


def outputs(answer):
    assert answer.status == 200, answer
    return {tensor["name"]: tensor for tensor in answer.json["outputs"]}


def images(*files, **more):
    data = [text_of(file) for file in files]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(data)], "data": data}
    return {"inputs": [tensor], **more}


def test_health_and_metadata(server):
    assert server.get("/v2/health/live").json == {"live": True}
    assert server.get("/v2/health/ready").json == {"ready": True}
    about = server.get("/v2").json
    assert about["name"] == "promptboost"
    assert about["extensions"] == []
    model = server.get("/v2/models/saved").json
    assert model["versions"] == ["1"]
    assert {tensor["name"]: tensor["datatype"] for tensor in model["inputs"]} == {
        "image": "BYTES",
        "embedding": "FP32",
    }
    assert model["outputs"][1] == {"name": "probabilities", "datatype": "FP32", "shape": [-1, 2]}
    assert server.get("/v2/models/saved/ready").json == {"name": "saved", "ready": True}
    assert server.get("/v2/models/saved/versions/1").json == model
    assert server.get("/v2/models/saved/versions/2").status == 404
    assert server.get("/v2/models/none/ready").status == 404


def test_images_and_their_embeddings_have_the_same_answers(server, world):
    classifier = load(world / "colours", cache=False)
    paths = sorted((world / "images").rglob("*.png"))[::7]
    expected = classifier.predict_proba(paths)
    files = [path.read_bytes() for path in paths]
    seen = server.post_json("/v2/models/colours/infer", images(*files, id="42"))
    assert seen.json["id"] == "42"
    assert seen.json["model_version"] == "1"
    rows = classifier.embedder.originals(paths)
    for data in (rows.tolist(), rows.ravel().tolist()):
        tensor = {"name": "embedding", "datatype": "FP32", "shape": list(rows.shape), "data": data}
        given = server.post_json("/v2/models/colours/versions/1/infer", {"inputs": [tensor]})
        for answer in (seen, given):
            made = outputs(answer)
            chances = np.reshape(made["probabilities"]["data"], made["probabilities"]["shape"])
            np.testing.assert_allclose(chances, expected, atol=1e-6)
            assert made["label"]["data"] == classifier.predict(paths).tolist()
            assert made["label"]["shape"] == [len(paths)]


def test_only_the_outputs_that_are_wanted(server):
    wanted = images(png(), outputs=[{"name": "label"}])
    assert list(outputs(server.post_json("/v2/models/saved/infer", wanted))) == ["label"]
    unknown = images(png(), outputs=[{"name": "colour"}])
    assert server.post_json("/v2/models/saved/infer", unknown).status == 422


def test_tensors_that_cannot_be_used(server):
    path = "/v2/models/saved/infer"
    row = [1.0] * 32
    good = {"name": "embedding", "datatype": "FP32", "shape": [1, 32], "data": row}
    assert server.post_json(path, {"inputs": [good]}).status == 200
    for change in (
        {"shape": [1, 31]},
        {"shape": [2, 32]},
        {"shape": [-1, 32]},
        {"shape": [32]} | {"data": row[:-1]},
        {"shape": [10**6, 32]},
        {"shape": []},
        {"data": [*row[:-1], "a"]},
        {"data": [*row[:-1], None]},
        {"data": [*row[:-1], True]},
        {"data": [*row[:-1], 1e300]},
        {"data": [[row]]},
        {"data": [row, row]},
        {"datatype": "FP64"},
        {"name": "other"},
        {"parameters": {"binary_data_size": 4}},
    ):
        answer = server.post_json(path, {"inputs": [{**good, **change}]})
        assert answer.status == 422, change
        assert answer.error
    for record in ({"inputs": []}, {"inputs": [good, good]}, {}, [], {"inputs": {}}):
        assert server.post_json(path, record).status == 422
    assert server.post_json(path, images(png(), b"bad")).error.startswith("image 2: ")

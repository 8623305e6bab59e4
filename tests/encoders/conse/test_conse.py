import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from promptboost.data.emoji import load_emoji
from promptboost.encoders import Encoder, load_encoder
from promptboost.encoders.base import TruncatedPromptWarning, encode_with
from promptboost.encoders.conse.conse import ConseEncoder, square_pixels
from promptboost.encoders.runtime import onnx_session
from promptboost.errors import EncoderError, MissingExtraError
from promptboost.pool.names import imagenet_class_names

try:
    load_encoder("conse:lite0")
    load_encoder("conse:lite2")
except MissingExtraError as missing:
    pytest.skip(str(missing), allow_module_level=True)

NAMES = ["conse:lite0", "conse:lite2"]


@pytest.fixture(scope="module")
def encoders():
    return {name: load_encoder(name, device="cpu") for name in NAMES}


@pytest.fixture(scope="module", params=NAMES)
def encoder(request, encoders):
    return encoders[request.param]


def waves():
    rows, columns = np.mgrid[0:120, 0:160]
    return Image.fromarray(
        np.stack([(2 * rows + columns) % 256, columns, rows], axis=2).astype(np.uint8)
    )


TEXT_ROWS = {
    "conse:lite0": [0.02091, 0.10912, 0.00404, 0.01458, 0.05717],
    "conse:lite2": [0.05134, 0.00930, 0.07311, -0.00468, 0.07720],
}
PICTURE_ROWS = {
    "conse:lite0": [-0.04608, 0.00886, -0.03081, -0.06060, 0.03072],
    "conse:lite2": [-0.03177, 0.03397, -0.04617, 0.00394, 0.02937],
}


def test_an_encoder_is_what_the_protocol_says(encoder):
    assert isinstance(encoder, Encoder)
    assert encoder.dim == 384
    assert encoder.context_length == {"conse:lite0": 256, "conse:lite2": 128}[encoder.id]
    assert not encoder.causal_text
    assert encoder.logit_scale == 10.0
    for rows in (encoder.encode_texts(["a", "b"]), encoder.encode_images(iter([waves()] * 2))):
        assert rows.shape == (2, 384)
        assert rows.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
    assert encoder.encode_texts([]).shape == encoder.encode_images([]).shape == (0, 384)


def test_a_text_has_the_row_it_always_had(encoder):
    row = encoder.encode_texts(["a photo of a bird."])[0]
    np.testing.assert_allclose(row[:5], TEXT_ROWS[encoder.id], atol=1e-3)


def test_a_image_has_the_row_it_always_had(encoder):
    row = encoder.encode_images([waves()])[0]
    np.testing.assert_allclose(row[:5], PICTURE_ROWS[encoder.id], atol=1e-3)


def test_birds_are_birds_and_cars_are_cars(encoder):
    emoji = [image for image in load_emoji().images if image.id.startswith("FB/")]
    birds = encoder.encode_images(p.open() for p in emoji if p.label == "bird")
    cars = encoder.encode_images(p.open() for p in emoji if p.label == "car or truck")
    texts = encoder.encode_texts(["a bird with feathers and a beak", "a car with four wheels"])
    about_birds, about_cars = texts
    assert (birds @ about_birds).mean() > (cars @ about_birds).mean() + 0.3
    assert (cars @ about_cars).mean() > (birds @ about_cars).mean() + 0.3
    assert (np.argmax(birds @ texts.T, axis=1) == 0).mean() > 0.6
    assert (np.argmax(cars @ texts.T, axis=1) == 1).mean() > 0.9


def test_a_row_does_not_depend_on_its_neighbors(encoder):
    texts = ["a bird", "a ship on the sea " * 9, "", "the clock of an old town hall"]
    alone = np.concatenate([encoder.encode_texts([text]) for text in texts])
    np.testing.assert_allclose(encoder.encode_texts(texts), alone, atol=1e-5)
    images = [waves(), waves().rotate(90, expand=True), *[Image.new("RGB", (5, 9))] * 4]
    alone = np.concatenate([encoder.encode_images([image]) for image in images])
    np.testing.assert_allclose(encoder.encode_images(images), alone, atol=1e-5)


def test_the_image_graph_is_the_published_network(encoder):
    torch = pytest.importorskip("torch")
    published = pytest.importorskip("efficientnet_lite_pytorch")

    name = encoder.id.removeprefix("conse:")
    network = published.EfficientNet.from_name(f"efficientnet-{name}").eval()
    network.load_state_dict(torch.load(encoder._image_file, weights_only=True))
    images = [waves(), waves().rotate(90, expand=True), Image.new("RGB", (9, 9), "red")]
    pixels = np.stack([encoder.preprocess(image) for image in images])
    with torch.inference_mode():
        inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
        logits = network((inputs - 127) / 128)
        chances = torch.softmax(logits.double() / encoder._image_net.temperature, dim=1).numpy()
    expected = chances @ encoder._names
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    pixels = [encoder.preprocess(image) for image in images]
    np.testing.assert_allclose(encoder.classified(pixels)[0], logits, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(encoder.encode_images(images), expected, atol=1e-5)


def test_the_text_graph_is_what_gradients_see(encoders):
    pytest.importorskip("torch")
    encoder = encoders["conse:lite0"]
    tower = encoder.text_tower()
    texts = ["a bird", "", "the clock of an old town hall " * 5]
    rows = encode_with(tower, texts).detach().cpu().numpy()
    np.testing.assert_allclose(encoder.encode_texts(texts), rows, atol=1e-5)


def test_the_sentence_encoder_is_the_published_one(encoders):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch = pytest.importorskip("torch")
    encoder = encoders["conse:lite0"]
    model = transformers.AutoModel.from_pretrained(encoder._text_file.parent).eval()
    tokens = torch.tensor(encoder._sentences.tokens(["a small brown bird"]))
    with torch.inference_mode():
        mean = model(tokens).last_hidden_state.mean(dim=1)
    expected = (mean / mean.norm()).numpy()
    np.testing.assert_allclose(encoder.encode_texts(["a small brown bird"]), expected, atol=1e-5)


def test_the_two_are_different_models(encoders):
    lite0, lite2 = encoders.values()
    assert lite0.fingerprint != lite2.fingerprint
    texts = ["a bird", "a parrot", "a lorry", "a cup of tea"]
    first, second = lite0.encode_texts(texts), lite2.encode_texts(texts)
    assert np.abs(first @ first.T - second @ second.T).max() > 0.05


def test_the_mixed_one_reads_like_lite0_and_sees_like_lite2(encoders):
    lite0, mixed = encoders["conse:lite0"], load_encoder("conse:lite2-l6")
    texts = ["a bird", "a cup of tea"]
    np.testing.assert_array_equal(mixed.encode_texts(texts), lite0.encode_texts(texts))
    assert mixed._image_file == encoders["conse:lite2"]._image_file
    assert len({mixed.fingerprint, *(e.fingerprint for e in encoders.values())}) == 3


def test_the_other_mixed_one_reads_like_lite2_and_sees_like_lite0(encoders):
    lite2, mixed = encoders["conse:lite2"], load_encoder("conse:lite0-l3")
    texts = ["a bird", "a cup of tea"]
    np.testing.assert_array_equal(mixed.encode_texts(texts), lite2.encode_texts(texts))
    assert mixed._image_file == encoders["conse:lite0"]._image_file
    assert len({mixed.fingerprint, *(e.fingerprint for e in encoders.values())}) == 3


def test_features_are_for_the_residual_and_change_no_score_of_the_text(encoders):
    lite0, features = encoders["conse:lite0"], load_encoder("conse:lite0-features")
    images, texts = [waves(), Image.new("RGB", (40, 30), "red")], ["a bird", "a cup of tea"]
    rows, sentences = features.encode_images(images), features.encode_texts(texts)
    assert rows.shape == sentences.shape == (2, features.dim) == (2, 1664)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert (sentences[:, 384:] == 0).all()
    plain = lite0.logit_scale * lite0.encode_images(images) @ lite0.encode_texts(texts).T
    np.testing.assert_allclose(features.logit_scale * rows @ sentences.T, plain, atol=1e-4)
    # What the export computes.
    graph = features.image_graph()
    pixels = np.stack([features.pixels(image) for image in images])
    (exported,) = onnx_session(graph.model).run(None, {"pixels": pixels})
    np.testing.assert_allclose(exported, rows, atol=1e-5)
    with pytest.raises(EncoderError, match="use conse:lite0"):
        features.text_tower()


def test_a_text_longer_than_the_context_is_reported(encoder):
    length = encoder.context_length
    fits, long = "bird " * (length - 2), "bird " * (length - 1)
    assert encoder.count_tokens([fits, long, ""]).tolist() == [length, length + 1, 2]
    encoder.encode_texts([fits])
    with pytest.warns(TruncatedPromptWarning, match=rf"1 of 2 .* number 2 has {length + 1} tokens"):
        encoder.encode_texts([fits, long])


def test_the_central_square_is_looked_at():
    image = Image.new("RGB", (300, 100), "white")
    image.paste("red", (100, 0, 200, 100))
    assert (square_pixels(image, 16) == [255, 0, 0]).all()
    assert square_pixels(Image.new("L", (1, 500)), 16).shape == (16, 16, 3)


def test_names_are_those_of_open_clip():
    pytest.importorskip("torch", reason="open_clip itself needs torch")
    from open_clip import IMAGENET_CLASSNAMES

    assert imagenet_class_names() == tuple(IMAGENET_CLASSNAMES)
    assert len(imagenet_class_names()) == 1000


def test_nothing_heavy_is_imported_until_something_is_encoded():
    code = (
        "import sys; from promptboost.encoders import load_encoder;"
        "load_encoder('conse:lite0').fingerprint; load_encoder('conse:lite2');"
        "heavy = {'torch', 'open_clip', 'onnx', 'onnxruntime', 'tokenizers'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# As on a machine without torch: whatever imports it fails, also open_clip itself.
NO_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "efficientnet_lite_pytorch"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoTorch())
from promptboost.cli import main
for line in sys.stdin.read().splitlines():
    try:
        main(line.split())
    except SystemExit as end:
        assert end.code in (0, None), (line, end.code)
assert "torch" not in sys.modules
"""


def test_fit_and_predict_need_no_torch(tmp_path):
    for label, color in (("red", "red"), ("blue", "blue")):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(3):
            image = Image.new("RGB", (60 + number, 50), color)
            image.save(tmp_path / "images" / label / f"{number}.png")
    lines = [
        "fit images -o run --encoder conse:lite0 --templates clip --shots 2 --rounds 1 --views 0",
        "predict run images/red/0.png images/blue/0.png",
        "transfer run --encoder conse:lite2",
    ]
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH],
        cwd=tmp_path,
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "images/red/0.png   red" in done.stdout


def test_gradients_without_torch_name_what_to_type(encoders, monkeypatch):
    monkeypatch.setattr("promptboost.encoders.runtime.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"need torch.* pip install .*\[clip\]'"):
        encoders["conse:lite0"].text_tower()


@pytest.mark.parametrize("device", ["abacus", "cuda:7"])
def test_a_device_that_is_not_there_is_refused_at_once(device):
    with pytest.raises(EncoderError, match=f"no device '{device}' .* run on the processor"):
        load_encoder("conse:lite0", device=device)


def test_graphs_are_built_once_and_again_if_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    rows = load_encoder("conse:lite2").encode_images([waves()])
    (graph,) = tmp_path.glob("conse/image-*")
    content, written = graph.read_bytes(), graph.stat().st_mtime_ns
    load_encoder("conse:lite2").encode_images([waves()])
    assert graph.stat().st_mtime_ns == written
    graph.write_bytes(content[:-1])
    np.testing.assert_array_equal(rows, load_encoder("conse:lite2").encode_images([waves()]))
    assert graph.read_bytes() == content


def test_the_names_are_embedded_once_and_again_if_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    counted = []
    embed = ConseEncoder._embed_names

    def counting(encoder):
        counted.append(encoder.id)
        return embed(encoder)

    monkeypatch.setattr(ConseEncoder, "_embed_names", counting)
    first = load_encoder("conse:lite2").encode_images([waves()])
    again = load_encoder("conse:lite2").encode_images([waves()])
    assert counted == ["conse:lite2"]
    np.testing.assert_array_equal(first, again)
    (names,) = tmp_path.glob("conse/names-*")
    data = bytearray(names.read_bytes())
    data[len(data) // 2] ^= 1
    names.write_bytes(data)
    np.testing.assert_array_equal(first, load_encoder("conse:lite2").encode_images([waves()]))
    assert len(counted) == 2
    assert names.read_bytes() != bytes(data)


def test_the_weights_of_the_sentence_encoder_are_not_kept_twice(tmp_path, monkeypatch, encoders):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    fresh = load_encoder("conse:lite0")
    texts = ["a bird", "", "the clock of an old town hall " * 5]
    np.testing.assert_array_equal(
        fresh.encode_texts(texts), encoders["conse:lite0"].encode_texts(texts)
    )
    assert list(tmp_path.glob("conse/*")) == []
    assert fresh._text_file.stat().st_size > 50_000_000


def test_nothing_is_told_about_this_machine(tmp_path):
    """onnxruntime would write down an identifier of it, and what it is to send."""
    code = "from promptboost.encoders import load_encoder; load_encoder('conse:lite2').encode_texts(['a'])"
    home = {"HOME": str(tmp_path), "PROMPTBOOST_CACHE": str(tmp_path / "ours")}
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ORT_", "XDG_", "CI"))
    }
    subprocess.run([sys.executable, "-c", code], check=True, env={**kept, **home})
    assert list(tmp_path.iterdir()) == []


def test_no_embedding_depends_on_the_number_of_threads(own_threads):
    from promptboost.threads import set_threads

    images = [waves().resize((90 + 7 * number, 80)) for number in range(9)]
    texts = [" ".join(["a small red bird near the water"] * n) for n in (1, 2, 5, 1, 3)]
    rows = []
    for count in (1, 2, 3):
        set_threads(count)
        encoder = load_encoder("conse:lite0")
        rows.append(
            (encoder.encode_images(images).tobytes(), encoder.encode_texts(texts).tobytes())
        )
    assert rows[0] == rows[1] == rows[2]

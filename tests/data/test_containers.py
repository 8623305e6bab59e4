"""Images in the containers of other libraries, with these libraries."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

import promptboost
from promptboost import PromptBoostClassifier
from promptboost.data import load_data
from promptboost.data.memory import as_images, holds_images, unpack
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import DataError, RunError
from tests.data.image_tools import encoded, plain

COLORS = ("red", "tomato", "blue", "navy")
LABELS = ["fire", "fire", "ice", "ice"]


def pixels(images):
    return [image.open().getpixel((0, 0)) for image in images]


EXPECTED = [plain(color).getpixel((0, 0)) for color in COLORS]


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{color}.png" for color in COLORS]
    for path, color in zip(paths, COLORS, strict=True):
        plain(color).save(path)
    return paths


def hugging_face(files):
    datasets = pytest.importorskip("datasets")
    features = {"photo": datasets.Image(), "what": datasets.ClassLabel(names=["fire", "ice"])}
    features["score"] = datasets.Value("float32")
    columns = {"photo": list(map(str, files)), "what": [0, 0, 1, 1], "score": [0.5] * 4}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def frame(files):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"image": list(map(str, files)), "label": LABELS, "size": 1.5})


def torchvision(files):
    folders = pytest.importorskip("torchvision.datasets")
    for path, label in zip(files, LABELS, strict=True):
        (path.parent / "folder" / label).mkdir(parents=True, exist_ok=True)
        (path.parent / "folder" / label / f"{path.stem}.png").write_bytes(path.read_bytes())
    return folders.ImageFolder(files[0].parent / "folder")


def transformed(files):
    pytest.importorskip("torchvision")
    from torchvision.transforms import ToTensor

    data = torchvision(files)
    data.transform = ToTensor()
    return data


def undecoded(files):
    return [
        {"image": {"bytes": path.read_bytes(), "path": path.name}, "label": label}
        for path, label in zip(files, LABELS, strict=True)
    ]


CONTAINERS = {
    "a Hugging Face dataset": hugging_face,
    "its rows": lambda files: list(hugging_face(files).rename_columns({"what": "label"})),
    "a slice of it": lambda files: hugging_face(files).rename_columns({"photo": "image"})[:4],
    "streamed": lambda files: hugging_face(files).to_iterable_dataset(),
    "rows that are not decoded": undecoded,
    "a data frame": frame,
    "a data frame of bytes": lambda files: frame(files).assign(
        image=[{"bytes": path.read_bytes(), "path": None} for path in files]
    ),
    "torchvision": torchvision,
    "torchvision, as tensors": transformed,
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_images_of_a_container_are_learned_and_predicted(files, name):
    X = CONTAINERS[name](files)
    assert holds_images(X)
    images = as_images(X)
    assert sorted(pixels(images)) == sorted(EXPECTED)
    labels = [LABELS[EXPECTED.index(pixel)] for pixel in pixels(images)]
    classifier = PromptBoostClassifier(FakeEncoder(48), random_state=0).fit(X, labels)
    plain_fit = PromptBoostClassifier(FakeEncoder(48), random_state=0)
    plain_fit.fit([image.open() for image in images], labels)
    np.testing.assert_array_equal(classifier.predict(X), plain_fit.predict(X))
    assert classifier.ensemble_.rounds == plain_fit.ensemble_.rounds


@pytest.mark.parametrize(
    "name", [name for name in CONTAINERS if name not in ("its rows", "a slice of it")]
)
def test_labels_of_a_container_are_read(files, name):
    data = load_data(CONTAINERS[name](files))
    assert data.class_names == ("fire", "ice")
    pairs = zip(pixels(data.images), (image.label for image in data.images), strict=True)
    assert set(pairs) == set(zip(EXPECTED, LABELS, strict=True))


def test_one_column_or_record_is_enough(files):
    data = hugging_face(files)
    assert sorted(pixels(as_images(data["photo"]))) == sorted(EXPECTED)
    record = {"bytes": files[0].read_bytes(), "path": None}
    assert pixels(as_images(record)) == pixels(as_images([record])) == EXPECTED[:1]
    assert pixels(as_images({"bytes": None, "path": str(files[2])})) == EXPECTED[2:3]
    assert len(as_images(frame(files)[["image"]])) == 4
    names = data.features["what"].names
    classifier = PromptBoostClassifier(FakeEncoder(48), class_names=names, random_state=0)
    classifier.fit(data["photo"], data["what"])
    assert classifier.classifier_.predict(data).shape == (4,)


def test_splits_of_a_hugging_face_dataset(files):
    datasets = pytest.importorskip("datasets")
    data = hugging_face(files)
    both = datasets.DatasetDict(train=data, test=data.select([0, 3]))
    assert [image.split for image in load_data(both).images] == ["train"] * 4 + ["test"] * 2


def test_columns_may_have_other_names(files):
    table = frame(files).rename(columns={"image": "Photo", "label": "Breed"})
    data = load_data(table, image_column="Photo", label_column="Breed")
    assert data.class_names == ("fire", "ice")
    assert sorted(pixels(data.images)) == sorted(EXPECTED)
    with pytest.raises(DataError, match="no column 'photo' of images; there is Photo, Breed, size"):
        unpack(table, "photo")
    numbers = frame(files)[["size"]].assign(image=0.5)
    assert not holds_images(numbers)


def test_manifests_with_other_columns(files, tmp_path):
    rows = [f"{path.name},{label},x" for path, label in zip(files, LABELS, strict=True)]
    (tmp_path / "list.csv").write_text("\n".join(["Photo,Breed,path", *rows]))
    source = f"{tmp_path}/list.csv?image=Photo&label=Breed"
    assert load_data(source).class_names == ("fire", "ice")
    again = load_data(tmp_path / "list.csv", image_column="Photo", label_column="Breed")
    assert [image.id for image in again.images] == [path.name for path in files]
    with pytest.raises(DataError, match="no column 'label'; it has: photo"):
        load_data(tmp_path / "list.csv")


def test_an_image_folder_with_metadata(files, tmp_path):
    for split, chosen in (("train", (0, 1, 2, 3)), ("test", (0, 3))):
        folder = tmp_path / "data" / split
        folder.mkdir(parents=True)
        lines = ["file_name,label,caption"]
        for i in chosen:
            (folder / files[i].name).write_bytes(files[i].read_bytes())
            lines.append(f"{files[i].name},{LABELS[i]},a square")
        (folder / "metadata.csv").write_text("\n".join(lines))
    data = load_data(tmp_path / "data")
    assert [image.id for image in data.of_split("test").images] == ["test/red.png", "test/navy.png"]
    assert len(data.of_split("train")) == 4
    assert data.class_names == ("fire", "ice")
    # Metadata without labels leave class folders as they are.
    (tmp_path / "folders" / "fire").mkdir(parents=True)
    (tmp_path / "folders" / "fire" / "1.png").write_bytes(files[0].read_bytes())
    (tmp_path / "folders" / "metadata.csv").write_text("file_name,caption\nfire/1.png,a square\n")
    assert load_data(tmp_path / "folders").class_names == ("fire",)
    (tmp_path / "folders" / "metadata.csv").write_text("author,year\nme,2026\n")
    assert load_data(tmp_path / "folders").class_names == ("fire",)


def write_tar(path, files, labels):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, (file, (ending, label)) in enumerate(zip(files, labels, strict=True)):
            for end, content in (("png", file.read_bytes()), (ending, label)):
                member = tarfile.TarInfo(f"{number:04d}.{end}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def test_tars_of_webdataset(files, tmp_path):
    named = [("cls", b"0"), ("cls", b"0"), ("cls", b"1"), ("cls", b"1")]
    write_tar(tmp_path / "wds/train/0.tar", files, named)
    write_tar(tmp_path / "wds/test/0.tar", files[:1], named[:1])
    (tmp_path / "wds/classnames.txt").write_text("fire\nice\n")
    data = load_data(tmp_path / "wds")
    assert data.class_names == ("fire", "ice")
    assert pixels(data.images) == [EXPECTED[0], *EXPECTED]
    assert [image.id for image in data.of_split("test").images] == ["test/0.tar/0000.png"]
    written = [("json", json.dumps({"label": label}).encode()) for label in LABELS]
    write_tar(tmp_path / "named" / "train-0.tar", files, written)
    data = load_data(tmp_path / "named" / "train-0.tar")
    assert [(image.label, image.split) for image in data.images] == [(x, "train") for x in LABELS]
    (tmp_path / "named/classnames.txt").write_text("fire\n")
    write_tar(tmp_path / "named/train-0.tar", files, named)
    with pytest.raises(DataError, match=r"0002\.png: .*classnames\.txt has no line for class 1"):
        load_data(tmp_path / "named")
    write_tar(tmp_path / "bare.tar", files, [("caption", b"x")] * 4)
    with pytest.raises(DataError, match="has no label: it needs a file of the same name"):
        load_data(tmp_path / "bare.tar")
    (tmp_path / "bad.tar").write_bytes(b"no tar")
    with pytest.raises(DataError, match="not a readable tar"):
        load_data(tmp_path / "bad.tar")


def test_a_fit_of_images_in_memory_can_be_measured_later(files, tmp_path):
    rows = [row for _ in range(3) for row in undecoded(files)]
    for number, row in enumerate(rows):  # so that no two are the same
        image = Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")
        image.putpixel((0, 0), (number, 0, 0))
        row["image"]["bytes"] = encoded(image)
    settings = {"encoder": "fake:64-0", "shots": 2, "views": 0, "cache": False}
    run = promptboost.fit(rows, tmp_path / "run", **settings)
    assert run.results.task.classes == 2
    assert len(list((tmp_path / "run-images").glob("*.png"))) == 12
    again = promptboost.fit(tmp_path / "run-images", tmp_path / "again", **settings)
    assert run.ensemble.fingerprint == again.ensemble.fingerprint
    (tmp_path / "new-images").mkdir()
    with pytest.raises(RunError, match="new-images exists"):
        promptboost.fit(rows, tmp_path / "new", **settings)


@pytest.mark.parametrize(
    "X",
    [
        [{"pixels": b"\x89PNG secret", "picture": 1}] * 4,
        [{"a": b"\x89PNG secret"}] * 4,
        [object()] * 4,
        {"pixels": [b"\x89PNG secret"] * 4},
        np.array([{"a": b"\x89PNG secret"}] * 4, dtype=object),
    ],
)
@pytest.mark.parametrize("encoder", [None, FakeEncoder(48)])
def test_no_error_holds_the_content_of_a_file(X, encoder):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        PromptBoostClassifier(encoder).fit(X, LABELS)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "source",
    [
        [("cat", b"\x89PNG secret")],
        [("cat", {"bytes": b"\x89PNG secret"})],
        [{"image": "1.png", "label": b"\x89PNG secret"}],
        [{"image": "1.png"}],
        [{"label": b"\x89PNG secret", "x": b"\x89PNG secret"}],
    ],
)
def test_no_error_of_a_source_holds_the_content_of_a_file(source):
    with pytest.raises(DataError) as caught:
        load_data(source)
    assert "secret" not in str(caught.value)

"""Benchmarks are downloaded from a local server, unpacked, sorted and checked."""

import functools
import io
import json
import tarfile
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from promptboost.data.benchmarks import BENCHMARKS, survey_benchmark
from promptboost.data.benchmarks.prepare import prepare_benchmark
from promptboost.errors import DataError
from tests.cli.cli_tools import call
from tests.data.benchmarks.benchmark_tools import PIXELS, tiny, write, write_json
from tests.data.benchmarks.mirror_tools import write_mirror


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirror")
    for name in BENCHMARKS:
        write_mirror(folder / name, name)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


@pytest.fixture
def small(monkeypatch):
    for name in BENCHMARKS:
        sizes = {"train": 6, "test": 4} if name == "imagenet" else None
        monkeypatch.setitem(BENCHMARKS, name, tiny(name, sizes))


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_benchmark_is_downloaded_and_prepared(mirror, small, tmp_path, name):
    url, _ = mirror
    said = []
    survey = prepare_benchmark(BENCHMARKS[name], tmp_path, mirror=f"{url}/{name}", say=said.append)
    assert survey.problems == ()
    assert survey_benchmark(name, tmp_path).complete
    assert any("unpacking" in line for line in said)
    left = [
        p
        for p in tmp_path.rglob("*")
        if p.name.startswith(".") or p.suffix in (".part", ".zip", ".tgz")
    ]
    assert left == []
    said.clear()
    prepare_benchmark(BENCHMARKS[name], tmp_path, mirror=f"{url}/{name}", say=said.append)
    assert said == []


def test_the_command_lists_prepares_and_checks(mirror, small, tmp_path, capsys):
    url, _ = mirror
    listed = call(capsys, "data", "list", "--json").json["benchmarks"]
    assert [one["name"] for one in listed] == list(BENCHMARKS)
    assert {one["name"] for one in listed if not one["download"]} == {
        "imagenet",
        "stanford_cars",
        "ucf101",
    }
    assert "by hand" in call(capsys, "data", "list").out
    for name in ("dtd", "flowers102"):
        assert (
            call(capsys, "data", "prepare", name, tmp_path, "--mirror", f"{url}/{name}").code == 0
        )
    answer = call(capsys, "data", "check", tmp_path)
    assert answer.code == 2
    states = dict(line.split(maxsplit=1) for line in answer.out.splitlines()[1:] if line.split())
    assert [name for name, state in states.items() if state == "complete"] == ["flowers102", "dtd"]
    assert "missing" in states["food101"]
    records = call(capsys, "data", "check", tmp_path, "--json").json["benchmarks"]
    assert [record["complete"] for record in records].count(True) == 2


def test_what_has_no_address_is_explained(tmp_path, small, capsys):
    write_json(
        tmp_path / "stanford_cars" / "split_zhou_StanfordCars.json",
        {"train": [["a.jpg", 0, "a"]], "val": [], "test": []},
    )
    answer = call(capsys, "data", "prepare", "stanford_cars", tmp_path)
    assert answer.code == 2
    assert "put cars_train.tgz and cars_test.tgz" in answer.out


def test_a_missing_page_and_a_web_page_are_refused(mirror, small, tmp_path):
    url, folder = mirror
    with pytest.raises(DataError, match=r"cannot download .*404"):
        prepare_benchmark(BENCHMARKS["dtd"], tmp_path, mirror=f"{url}/nowhere")
    write_mirror(folder / "odd", "dtd")
    (folder / "odd" / "dtd-r1.0.1.tar.gz").write_text("<html>log in</html>")
    with pytest.raises(DataError, match="is not an archive"):
        prepare_benchmark(BENCHMARKS["dtd"], tmp_path, mirror=f"{url}/odd")
    assert not list(tmp_path.rglob("*.part"))


def _tar_with(path, name, content=b"x", kind=None, link=""):
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        if kind is not None:
            entry.type, entry.linkname, entry.size = kind, link, 0
        tar.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../../escaped.txt", None, ""),
        ("dtd/link", tarfile.SYMTYPE, "../../../.."),
        ("dtd/device", tarfile.CHRTYPE, ""),
    ],
)
def test_hostile_archives_write_nothing_outside(small, tmp_path, name, kind, link):
    data = tmp_path / "a" / "b"
    base = data / "dtd"
    base.mkdir(parents=True)
    (base / "split_zhou_DescribableTextures.json").write_text(
        json.dumps({"train": [["a/1.jpg", 0, "a"]], "val": [], "test": [["a/2.jpg", 0, "a"]]})
    )
    _tar_with(base / "dtd-r1.0.1.tar.gz", name, kind=kind, link=link)
    with pytest.raises(DataError, match="cannot unpack"):
        prepare_benchmark(BENCHMARKS["dtd"], data)
    assert sorted(p.name for p in tmp_path.rglob("*")) == [
        *("a", "b", "dtd", "dtd-r1.0.1.tar.gz", "split_zhou_DescribableTextures.json")
    ]


def test_paths_of_a_zip_stay_inside(small, tmp_path):
    base = tmp_path / "eurosat"
    write_json(
        base / "split_zhou_EuroSAT.json", {"train": [["A/1.jpg", 0, "a"]], "val": [], "test": []}
    )
    with zipfile.ZipFile(base / "EuroSAT_RGB.zip", "w") as packed:
        packed.writestr("../../escaped.jpg", PIXELS)
    prepare_benchmark(BENCHMARKS["eurosat"], tmp_path)
    assert not (tmp_path.parent / "escaped.jpg").exists()


def test_middle_frames_of_videos(small, tmp_path):
    av = pytest.importorskip("av", reason="needs PyAV")
    import numpy as np

    base = tmp_path / "ucf101"
    video = base / "UCF-101" / "Archery" / "v_Archery_g01_c01.avi"
    video.parent.mkdir(parents=True)
    with av.open(str(video), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in (10, 120, 240):
            frame = av.VideoFrame.from_ndarray(
                np.full((48, 64, 3), level, np.uint8), format="rgb24"
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    listed = {"train": [["Archery/v_Archery_g01_c01.jpg", 0, "Archery"]], "val": [], "test": []}
    write_json(base / "split_zhou_UCF101.json", listed)
    prepare_benchmark(BENCHMARKS["ucf101"], tmp_path)
    from PIL import Image

    with Image.open(base / "UCF-101-midframes" / "Archery" / "v_Archery_g01_c01.jpg") as image:
        assert abs(np.asarray(image).mean() - 120) < 12


def test_validation_images_are_sorted(small, tmp_path):
    base = tmp_path / "imagenet"
    write(base / "images", ["train/n01440764/n01440764_1.JPEG", "val/ILSVRC2012_val_00000001.JPEG"])
    (base / "classnames.txt").write_text("n01440764 tench\n")
    (base / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 1 2 3 4\n../../evil,n01440764 1\n"
    )
    prepare_benchmark(BENCHMARKS["imagenet"], tmp_path)
    assert (base / "images/val/n01440764/ILSVRC2012_val_00000001.JPEG").is_file()

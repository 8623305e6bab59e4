"""Small archives of the real layout of each benchmark, as their servers have them."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

from promptboost.data.benchmarks import BENCHMARKS
from tests.data.benchmarks.benchmark_tools import PIXELS, paths_of, tiny_split

AIRCRAFT = {"707-320": ("0034309", "0034958"), "A300B4": ("0100000", "0100001")}
IMAGENET = {"n01440764": "tench", "n01443537": "goldfish"}


def tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as packed:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return content.getvalue()


def write_mirror(folder: Path, name: str, pixels=lambda path, label: PIXELS) -> None:
    """Write what the server of a benchmark has; `pixels` makes the image of a path and class."""
    folder.mkdir(parents=True)
    benchmark = BENCHMARKS[name]
    if name == "imagenet":
        _write_imagenet(folder, pixels)
        return
    if name == "fgvc_aircraft":
        _write_aircraft(folder, pixels)
        return
    split = tiny_split(name)
    (folder / str(benchmark.split_file)).write_text(json.dumps(split))
    labels = {path: label for rows in split.values() for path, label, _ in rows}
    images = {path: pixels(path, labels[path]) for path in paths_of(split)}
    below = {
        "caltech101": "101_ObjectCategories",
        "oxford_pets": "images",
        "flowers102": "jpg",
        "food101": "food-101/images",
        "sun397": "SUN397",
        "dtd": "dtd/images",
        "eurosat": "EuroSAT_RGB",
        "ucf101": "UCF-101-midframes",
    }.get(name)
    files = {f"{below}/{path}": data for path, data in images.items()}
    if name == "stanford_cars":
        for part in ("cars_train", "cars_test"):
            chosen = {path: data for path, data in images.items() if path.startswith(part)}
            (folder / f"{part}.tgz").write_bytes(tar(chosen))
    elif name == "caltech101":
        inner = tar(files)
        archive = {"caltech-101/101_ObjectCategories.tar.gz": inner, "caltech-101/readme": b"hello"}
        (folder / "caltech-101.zip").write_bytes(zipped(archive))
    else:
        (archive,) = benchmark.archives
        pack = zipped if archive.name.endswith(".zip") else tar
        (folder / archive.name).write_bytes(pack(files))


def _write_aircraft(folder: Path, pixels) -> None:
    base = "fgvc-aircraft-2013b/data"
    parts = {"train": 3, "val": 1, "test": 2}
    lists: dict[str, list[str]] = {part: [] for part in parts}
    files = {f"{base}/variants.txt": "\n".join(AIRCRAFT).encode()}
    for label, name in enumerate(AIRCRAFT):
        number = 0
        for part, count in parts.items():
            for _ in range(count):
                image = f"{label}{number:06}"
                number += 1
                lists[part].append(f"{image} {name}")
                files[f"{base}/images/{image}.jpg"] = pixels(image, label)
    for part, lines in lists.items():
        files[f"{base}/images_variant_{part}.txt"] = "\n".join(lines).encode()
    (folder / "fgvc-aircraft-2013b.tar.gz").write_bytes(tar(files))


def _write_imagenet(folder: Path, pixels) -> None:
    train, val, labels = {}, {}, ["ImageId,PredictionString"]
    for label, wnid in enumerate(IMAGENET):
        images = {f"{wnid}_{i}.JPEG": pixels(f"{wnid}{i}", label) for i in range(3)}
        train[f"{wnid}.tar"] = tar(images, "w")
        for i in range(2):
            image = f"ILSVRC2012_val_{2 * label + i:08}"
            val[f"{image}.JPEG"] = pixels(image, label)
            labels.append(f"{image},{wnid} 1 2 3 4")
    (folder / "ILSVRC2012_img_train.tar").write_bytes(tar(train, "w"))
    (folder / "ILSVRC2012_img_val.tar").write_bytes(tar(val, "w"))
    lines = [f"{wnid} {name}" for wnid, name in IMAGENET.items()]
    (folder / "classnames.txt").write_text("\n".join(lines))
    (folder / "LOC_val_solution.csv").write_text("\n".join(labels))

"""Tiny trees in the layout of each benchmark, and the split files of the real ones."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from promptboost.data.benchmarks import BENCHMARKS, Benchmark
from tests.data.image_tools import encoded, plain

# The folder of each benchmark in the released lists, and its split file there.
SPLITS = {
    "caltech101": ("caltech101", "split_zhou_Caltech101.json"),
    "oxford_pets": ("oxford_pets", "split_zhou_OxfordPets.json"),
    "stanford_cars": ("stanford_cars", "split_zhou_StanfordCars.json"),
    "flowers102": ("flo", "split_zhou_OxfordFlowers.json"),
    "sun397": ("sun397", "split.json"),
    "dtd": ("dtd", "split_zhou_DescribableTextures.json"),
    "eurosat": ("euro_sat", "split_zhou_EuroSAT.json"),
    "ucf101": ("ucf101", "split_zhou_UCF101.json"),
}

PIXELS = encoded(plain(size=(6, 4)), "JPEG")

# Two classes of each benchmark with a split file: paths as the file writes them, "{}" is a number
# that differs for each image.
PATHS = {
    "caltech101": {"face": "Faces/image_{:04}.jpg", "leopard": "Leopards/image_{:04}.jpg"},
    "oxford_pets": {"abyssinian": "Abyssinian_{}.jpg", "basset_hound": "basset_hound_{}.jpg"},
    "stanford_cars": {
        "2012 Acura RL Sedan": "cars_train/{:05}.jpg",
        "2000 AM General Hummer SUV": "cars_train/1{:04}.jpg",
    },
    "flowers102": {"passion flower": "image_{:05}.jpg", "water lily": "image_1{:04}.jpg"},
    "food101": {"apple_pie": "apple_pie/10{}.jpg", "baklava": "baklava/20{}.jpg"},
    "sun397": {
        "abbey": "a/abbey/sun_{:04}.jpg",
        "outdoor athletic_field": "a/athletic_field/outdoor/sun_1{:04}.jpg",
    },
    "dtd": {"banded": "banded/banded_{:04}.jpg", "dotted": "dotted/dotted_{:04}.jpg"},
    "eurosat": {
        "Annual Crop Land": "AnnualCrop/AnnualCrop_{}.jpg",
        "Sea or Lake": "SeaLake/SeaLake_{}.jpg",
    },
    "ucf101": {
        "Apply_Eye_Makeup": "Apply_Eye_Makeup/v_ApplyEyeMakeup_g01_c{:02}.jpg",
        "Archery": "Archery/v_Archery_g01_c{:02}.jpg",
    },
}

SIZES = {"train": 6, "val": 2, "test": 4}


def tiny(name: str, sizes: dict[str, int] | None = None, classes: int = 2) -> Benchmark:
    """The benchmark, as if it were published with as few images as the tree has."""
    sizes = SIZES if sizes is None else sizes
    return replace(BENCHMARKS[name], sizes=sizes, classes=classes, split_digest=None)


def tiny_split(name: str) -> dict[str, list[list]]:
    """A split file's content: three, one and two images of each of two classes."""
    split: dict[str, list[list]] = {"train": [], "val": [], "test": []}
    for label, (title, pattern) in enumerate(PATHS[name].items()):
        for number in range(6):
            part = ("train", "train", "train", "val", "test", "test")[number]
            path = pattern.format(number)
            if part == "test" and name == "stanford_cars":  # numbered from one again
                path = pattern.format(number - 4).replace("cars_train", "cars_test")
            split[part].append([path, label, title])
    return split


def write(root: Path, paths: list[str], content: bytes = PIXELS) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def paths_of(split: dict[str, list[list]]) -> list[str]:
    return [path for listed in split.values() for path, _, _ in listed]


def write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_tree(root: Path, name: str, folder: str | None = None, images: str | None = None) -> Path:
    """Write the images and the split file as the protocol has them; gives the dataset's folder."""
    benchmark = BENCHMARKS[name]
    base = root / (benchmark.folders[0] if folder is None else folder)
    split = tiny_split(name)
    write(base / (benchmark.images[0] if images is None else images), paths_of(split))
    write_json(base / str(benchmark.split_file), split)
    return base


def contents(listing) -> dict[str, list[tuple[str, str]]]:
    """What was read, in the shape of a split file without numbers."""
    found: dict[str, list[tuple[str, str]]] = {}
    for image in listing.images:
        found.setdefault(image.split, []).append((image.id, image.label))
        assert image.source.is_file()
        assert image.source.name == image.id.rpartition("/")[2]
    # Every image is another file.
    assert max(Counter(image.source for image in listing.images).values()) == 1
    return found


def expected(name: str) -> dict[str, list[tuple[str, str]]]:
    return {
        part: [(path, title) for path, _, title in listed]
        for part, listed in tiny_split(name).items()
    }

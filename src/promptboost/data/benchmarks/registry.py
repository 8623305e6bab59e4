"""Facts about the eleven benchmarks: what they are called, how large they are, where to get them.

Class names and splits are not here: they are read from the files that come with the images.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from promptboost.errors import DataError

# Words, and no path: "./dtd" is a folder.
_NAME = re.compile(r"[\w -]+")
_SPLIT_PAGE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of the CoOp protocol."""

    name: str  # what to type
    title: str  # what papers call it
    folders: tuple[str, ...]  # what its folder is called, the protocol's own name first
    images: tuple[str, ...]  # where the images are in that folder; empty for the folder itself
    sizes: Mapping[str, int]  # published number of images of each split
    classes: int
    page: str  # of the project
    template: str = "a photo of a {}."  # the protocol's one prompt for it
    split_file: str | None = None  # None where the layout itself says which images there are
    marks: tuple[str, ...] = ()  # folders by which an image folder is known
    prefix: str = ""  # what the split file writes before the name of a split in its paths
    split_digest: str | None = None  # of what the split file says, where it is known
    advice: str = ""  # what else to know when getting it

    def how_to_get(self) -> list[str]:
        """Return, in words, where the images and the split file come from."""
        place = "/".join(part for part in (self.folders[0], self.images[0]) if part)
        lines = [f"images: {self.page} → {place}"]
        if self.split_file is not None:
            lines.append(f"{self.split_file}: {_SPLIT_PAGE} → {self.folders[0]}")
        return [*lines, self.advice] if self.advice else lines


def _sizes(train: int, val: int, test: int) -> Mapping[str, int]:
    return MappingProxyType({"train": train, "val": val, "test": test})


_ALL = (
    Benchmark(
        name="imagenet",
        title="ImageNet",
        folders=("imagenet",),
        images=("images", "", "ILSVRC/Data/CLS-LOC"),
        sizes=MappingProxyType({"train": 1_281_167, "test": 50_000}),
        classes=1000,
        page="https://image-net.org/download.php",
        marks=("train",),
        advice=f"classnames.txt (a line like 'n01440764 tench' for each class): {_SPLIT_PAGE} → imagenet. "
        "The validation images, which are the test split here, lie in one folder for each class",
    ),
    Benchmark(
        name="caltech101",
        title="Caltech101",
        folders=("caltech-101", "caltech101"),
        images=("101_ObjectCategories",),
        sizes=_sizes(4128, 1649, 2465),
        classes=100,
        page="https://data.caltech.edu/records/mzrjq-6wc02",
        split_file="split_zhou_Caltech101.json",
        split_digest="d8f923f0062fa47f",
    ),
    Benchmark(
        name="oxford_pets",
        title="OxfordPets",
        folders=("oxford_pets", "oxford-iiit-pet"),
        images=("images",),
        sizes=_sizes(2944, 736, 3669),
        classes=37,
        template="a photo of a {}, a type of pet.",
        page="https://www.robots.ox.ac.uk/~vgg/data/pets/",
        split_file="split_zhou_OxfordPets.json",
        split_digest="609544cd4a0e0f82",
    ),
    Benchmark(
        name="stanford_cars",
        title="StanfordCars",
        folders=("stanford_cars",),
        images=("",),
        sizes=_sizes(6509, 1635, 8041),
        classes=196,
        page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        split_file="split_zhou_StanfordCars.json",
        split_digest="d0d8f0dd01951ead",
        marks=("cars_train",),
        prefix="cars_",
        advice="both folders are needed, cars_train and cars_test; where the page no longer serves them, "
        "copies that keep the file names will do",
    ),
    Benchmark(
        name="flowers102",
        title="Flowers102",
        folders=("oxford_flowers", "flowers-102"),
        images=("jpg",),
        sizes=_sizes(4093, 1633, 2463),
        classes=102,
        template="a photo of a {}, a type of flower.",
        page="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        split_file="split_zhou_OxfordFlowers.json",
        split_digest="70f384c082d64088",
    ),
    Benchmark(
        name="food101",
        title="Food101",
        folders=("food-101",),
        images=("images",),
        sizes=_sizes(50_500, 20_200, 30_300),
        classes=101,
        template="a photo of {}, a type of food.",
        page="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        split_file="split_zhou_Food101.json",
        advice="the official lists in meta/ are another split than the protocol's",
    ),
    Benchmark(
        name="fgvc_aircraft",
        title="FGVCAircraft",
        folders=("fgvc_aircraft", "fgvc-aircraft-2013b"),
        images=("images", "data/images"),
        sizes=_sizes(3334, 3333, 3333),
        classes=100,
        template="a photo of a {}, a type of aircraft.",
        page="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        advice="the split is in variants.txt and images_variant_{train,val,test}.txt, which come with the "
        "pictures",
    ),
    Benchmark(
        name="sun397",
        title="SUN397",
        folders=("sun397",),
        images=("SUN397",),
        sizes=_sizes(15_880, 3970, 19_850),
        classes=397,
        page="https://vision.princeton.edu/projects/2010/SUN/",
        split_file="split_zhou_SUN397.json",
        split_digest="608fa6b3974fdb9e",
    ),
    Benchmark(
        name="dtd",
        title="DTD",
        folders=("dtd",),
        images=("images", "dtd/images"),
        sizes=_sizes(2820, 1128, 1692),
        classes=47,
        template="{} texture.",
        page="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        split_file="split_zhou_DescribableTextures.json",
        split_digest="d9497e3b3403ed44",
    ),
    Benchmark(
        name="eurosat",
        title="EuroSAT",
        folders=("eurosat",),
        images=("2750",),
        sizes=_sizes(13_500, 5400, 8100),
        classes=10,
        template="a centered satellite photo of {}.",
        page="https://github.com/phelber/EuroSAT",
        split_file="split_zhou_EuroSAT.json",
        split_digest="00683dcac7362740",
        advice="the RGB images, not the 13-band ones",
    ),
    Benchmark(
        name="ucf101",
        title="UCF101",
        folders=("ucf101",),
        images=("UCF-101-midframes",),
        sizes=_sizes(7639, 1898, 3783),
        classes=101,
        template="a photo of a person doing {}.",
        page="https://www.crcv.ucf.edu/data/UCF101.php",
        split_file="split_zhou_UCF101.json",
        split_digest="f432b1baef27c9ff",
        advice="the protocol uses the middle frame of each video, not the videos: UCF-101-midframes.zip, "
        f"{_SPLIT_PAGE}",
    ),
)

#: The eleven benchmarks by the name to type, in the order of the papers' tables.
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}


def benchmark_named(text: str) -> Benchmark:
    """Find a benchmark by its name, its title or the name of its folder.

    Case, hyphens and underscores do not matter.

    Examples
    --------
    >>> benchmark_named("Oxford-IIIT-Pet").name
    'oxford_pets'
    """
    benchmark = find_benchmark(text)
    if benchmark is None:
        raise DataError(f"there is no benchmark {text!r}; there are: {', '.join(BENCHMARKS)}")
    return benchmark


def find_benchmark(text: str) -> Benchmark | None:
    """Find a benchmark as :func:`benchmark_named` does; None if there is none of that name."""
    if _NAME.fullmatch(text) is None:
        return None
    for benchmark in BENCHMARKS.values():
        if _key(text) in map(_key, (benchmark.name, benchmark.title, *benchmark.folders)):
            return benchmark
    return None


def _key(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())

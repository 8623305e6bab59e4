"""The files as their authors released them, where they are beside the project.

Every file of the eleven datasets is checked against the class names of that dataset; a class
without a partner, or a name without a class, is an error unless the reason is written here.
"""

import json

import pytest

from promptboost.data.benchmarks import read_split
from promptboost.pool import read_pool
from promptboost.pool.lint import lint
from promptboost.pool.names import read_class_names, read_synonyms
from promptboost.pool.readers import read_sources
from promptboost.pool.sources import join_sentences, match_classes
from tests.beside import POOLS, needs_beside
from tests.pool.reader_tools import read_source

pytestmark = needs_beside

BASE, FULL = "CuPL/all_prompts/base_prompts", "CuPL/all_prompts/full_prompts"
VIS, ADAPT = "GPT4Vis/GPT4_generated_prompts", "AdaptCLIPZS/gpt_descriptions/gpt4_0613_api_"
ZERO, FEW = "AWT/AWT_zero_shot/descriptions", "AWT/AWT_few_shot/MM_Adapter/descriptions"


def awt(name):
    return [f"{ZERO}/image_datasets/{name}.json", f"{FEW}/{name}.json"]


def cupl(name, full=None):
    return [f"{BASE}/{name}_prompts_base.json", f"{FULL}/{full or name}_prompts_full.json"]


# By the folder with the class names. EuroSAT has no CuPL file, ImageNet no full one and no AWT.
FILES = {
    "caltech101": [
        *(*cupl("cal"), f"{VIS}/caltech101_20_prompts_0_101_api.json"),
        *(*awt("caltech101"), f"{ADAPT}CalTech101"),
    ],
    "dtd": [
        *(*cupl("texture"), f"{VIS}/dtd_20_prompts_0_47_api.json", *awt("dtd"), f"{ADAPT}DTD"),
        "DCLIP/descriptors/descriptors_dtd.json",
    ],
    "euro_sat": [
        *(f"{VIS}/eurosat_20_prompts.json", *awt("eurosat"), f"{ADAPT}EuroSAT"),
        "DCLIP/descriptors/descriptors_eurosat.json",
    ],
    "fgvc_aircraft": [
        *(*cupl("airplane"), f"{VIS}/aircraft_20_prompts_0_100_api.json"),
        *(*awt("fgvc_aircraft"), f"{ADAPT}FGVCAircraft"),
    ],
    "flo": [
        *(*cupl("flower"), f"{VIS}/flower102_20_prompts_api.json", *awt("oxford_flowers")),
        *(f"{ADAPT}Flowers102", f"{ADAPT}Flowers102_location"),
    ],
    "food101": [
        *(*cupl("food"), f"{VIS}/food101_20_prompts_0_101_api.json", *awt("food101")),
        *(f"{ADAPT}Food101", "DCLIP/descriptors/descriptors_food101.json"),
    ],
    "imagenet": [
        *(cupl("imagenet")[0], f"{VIS}/imagenet_20_prompts_0_1000_api.json"),
        *(f"{ADAPT}ImageNet", "DCLIP/descriptors/descriptors_imagenet.json"),
        "CuPL_imagenet/cupl_imagenet1k_50.json",
    ],
    "oxford_pets": [
        *(*cupl("pet", "pets"), f"{VIS}/pets_20_prompts_0_37_api.json", *awt("oxford_pets")),
        *(f"{ADAPT}OxfordIIITPets", "DCLIP/descriptors/descriptors_pets.json"),
    ],
    "stanford_cars": [
        *(*cupl("cars"), f"{VIS}/stanford_car_20_prompts_0_196_api.json"),
        *(*awt("stanford_cars"), f"{ADAPT}StanfordCars"),
    ],
    "sun397": [
        *(*cupl("sun"), f"{VIS}/sun397_20_prompts_0_397_api.json", *awt("sun397")),
        f"{ADAPT}Sun397",
    ],
    "ucf101": [
        *(*cupl("ucf"), f"{VIS}/ucf_20_prompts.json", *awt("ucf101"), f"{ADAPT}UCF101"),
        f"{ZERO}/video_datasets/UCF101.json",
    ],
}
CASES = [(dataset, file) for dataset, files in FILES.items() for file in files]

# What no rule can find and a table has to know: how many classes, and why.
KNOWN = {
    **dict.fromkeys(cupl("cal"), (8, "CLIP describes parts of things in full")),
    **dict.fromkeys(cupl("flower"), (2, "CLIP renamed two flowers")),
    f"{VIS}/eurosat_20_prompts.json": (4, "CoOp's names, not CLIP's"),
    f"{ADAPT}EuroSAT": (8, "the names of the folders, not CLIP's"),
    cupl("imagenet")[0]: (2, "CLIP's later name of two classes"),
    f"{VIS}/imagenet_20_prompts_0_1000_api.json": (2, "CLIP's later name of two classes"),
    "CuPL_imagenet/cupl_imagenet1k_50.json": (2, "CLIP's later name of two classes"),
}
# Names that are no class of the dataset.
UNUSED = {
    **{file: {"background"} for file in cupl("cal")},  # the class that CoOp's protocol leaves out
    "DCLIP/descriptors/descriptors_imagenet.json": {"projectile", "sunglass"},  # merged: 998 names
    f"{ADAPT}DTD": {  # files of another dataset
        *("abyssinian", "american bulldog", "american pit bull terrier", "basset hound"),
        *("beagle", "bengal", "birman"),
    },
}
# Other datasets of the same authors: read, and not of the eleven.
OTHERS = {
    *("bird_prompts_base.json", "bird_prompts_full.json", "cifar10_prompts_base.json"),
    *("cifar10_prompts_full.json", "cifar100_prompts_base.json", "cifar100_prompts_full.json"),
    *("res45_prompts_base.json", "res45_prompts_full.json", "descriptors_cub.json"),
    *("descriptors_places365.json", "hmdb_20_prompts_0_51_api.json", "birdsnap.json", "cub.json"),
    *("k400_20_prompts_0_400_api.json", "modelnet10_20_prompts_0_10_api.json", "caltech256.json"),
    *("raf_db_20_prompts.json", "ssv1_20_prompts_0_174_api.json"),
    *("gpt4_0613_api_CUB", "gpt4_0613_api_CUB_location"),
}


def classes_of(dataset):
    return read_class_names(POOLS / "ProAPO" / dataset)


def wordnet():
    return read_synonyms(POOLS / "ProAPO/imagenet/file_name_to_category_name.json")


@pytest.mark.parametrize(("dataset", "file"), CASES)
def test_zero_unexplained_misses(dataset, file):
    given = wordnet() if file.endswith("api_ImageNet") else None
    met = match_classes(read_source(POOLS / file), classes_of(dataset), given).names
    assert (met.missing, met.ambiguous) == ((), ())
    assert set(met.unused) == UNUSED.get(file, set())
    known = {match.class_name for match in met.matches if match.how == "known name"}
    assert len(known) == KNOWN.get(file, (0, ""))[0]


@pytest.mark.parametrize("dataset", [name for name in FILES if name not in ("food101", "imagenet")])
def test_the_protocols_own_names_miss_nothing_either(dataset):
    folder = POOLS / "ProAPO" / dataset
    split = next(folder.glob("split_zhou_*.json"), folder / "split.json")
    names = list(dict.fromkeys(item.name for item in read_split(split)["test"]))
    files = [file for case, file in CASES if case == dataset]
    for source in [source for file in files for source in read_sources(POOLS / file)]:
        met = match_classes(source, names).names
        assert (met.missing, met.ambiguous) == ((), ()), source.path
    for source in read_sources(POOLS / "ProAPO" / dataset):
        met = match_classes(source, names).names
        assert (met.missing, met.unused, met.ambiguous) == ((), (), ()), source.path


def test_the_folders_of_eurosat_are_names_too():
    folders = ["AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial", "Pasture"]
    folders += ["PermanentCrop", "Residential", "River", "SeaLake"]
    files = [file for case, file in CASES if case == "euro_sat"]
    sources = [read_source(POOLS / file) for file in files]
    for source in (*sources, *read_sources(POOLS / "ProAPO" / "euro_sat")):
        met = match_classes(source, folders).names
        assert (met.missing, met.unused, met.ambiguous) == ((), (), ()), source.path


@pytest.mark.parametrize("dataset", FILES)
def test_harmonised_folders_miss_nothing(dataset):
    names = classes_of(dataset)
    sources = read_sources(POOLS / "ProAPO" / dataset)
    assert len(sources) == {"imagenet": 4, "flo": 7}.get(dataset, 6)
    for source in sources:
        met = match_classes(source, names).names
        assert (met.missing, met.unused, met.ambiguous) == ((), (), ())
        assert {match.how for match in met.matches} == {"exact"}


def test_every_released_file_is_read():
    files = [
        *POOLS.glob("CuPL*/**/*.json"),
        *POOLS.glob("DCLIP/**/*.json"),
        *POOLS.glob("GPT4Vis/**/*.json"),
        *POOLS.glob("AWT/**/*.json"),
        *POOLS.glob("AdaptCLIPZS/gpt_descriptions/*"),
    ]
    checked = {file for _, file in CASES}
    strange = [file for file in files if str(file.relative_to(POOLS)) not in checked]
    assert {file.name for file in strange} == OTHERS
    for file in strange:
        assert read_source(file).kind in ("cupl", "dclip", "gpt4vis", "awt", "adaptclip")


def codes(dataset, file, synonyms=None):
    names = classes_of(dataset)
    found = lint(match_classes(read_source(POOLS / file), names, synonyms), names)
    return {finding.rule.code: finding.details for finding in found}


def how(dataset, file, synonyms=None):
    met = match_classes(read_source(POOLS / file), classes_of(dataset), synonyms).names
    return {match.entry: match.how for match in met.matches}


def test_the_traps_are_found():
    assert "background" in codes("caltech101", cupl("cal")[0])["PP003"]
    assert {"beagle", "birman"} <= set(codes("dtd", f"{ADAPT}DTD")["PP003"])
    assert codes("food101", "DCLIP/descriptors/descriptors_food101.json")["PP010"]  # empty lists
    assert codes("flo", "ProAPO/flo/category_description/AdaptCLIP.json")["PP012"]  # repeats
    assert codes("caltech101", awt("caltech101")[0])["PP011"]  # blank sentences
    assert codes("fgvc_aircraft", cupl("airplane")[0])["PP014"]  # tags and lists
    assert "bombay: “.”" in codes("oxford_pets", cupl("pet", "pets")[1])["PP018"]
    assert "Apply Eye Makeup: “1.”" in codes("ucf101", cupl("ucf")[1])["PP018"]
    assert "\\u200b" in (POOLS / cupl("sun")[0]).read_text()  # removed by the reader
    sentences = read_source(POOLS / cupl("sun")[0]).sentences
    assert not any("\u200b" in text for texts in sentences.values() for text in texts)


def test_how_the_traps_are_met():
    cars = how("stanford_cars", cupl("cars")[1])
    assert [*cars.values()].count("year first") == 195
    actions = how("ucf101", f"{VIS}/ucf_20_prompts.json")
    assert [*actions.values()].count("camel case") == 76
    planes = how("fgvc_aircraft", f"{ADAPT}FGVCAircraft")
    assert [name for name, word in planes.items() if word == "slash"] == [
        "F-16ASLASHB",
        "FSLASHA-18",
    ]
    assert "case" in how("oxford_pets", "DCLIP/descriptors/descriptors_pets.json").values()
    assert "underscores" in how("food101", awt("food101")[0]).values()
    assert len(how("imagenet", f"{ADAPT}ImageNet", wordnet())) == 1000
    assert len(read_source(POOLS / cupl("imagenet")[0]).sentences) == 998


def test_templates_and_class_names_of_clip():
    templates = read_source(POOLS / "CLIP/imagenet_80_templates.json")
    assert len(templates.texts([], "owl")) == 80
    with pytest.raises(Exception, match="'missile'"):
        read_class_names(POOLS / "CLIP/imagenet_classes_notebook.json")


def test_all_sources_of_pets_together():
    names = classes_of("oxford_pets")
    sources = [read_source(POOLS / file) for file in FILES["oxford_pets"]]
    joined = join_sentences([match_classes(source, names) for source in sources], names)
    assert list(joined) == list(names)
    assert json.loads(json.dumps(joined)) == joined
    assert min(map(len, joined.values())) > 130


def test_ablation_pools_of_pets_are_one_argument():
    names = classes_of("oxford_pets")
    folder = POOLS / "ProAPO/oxford_pets"
    counts = {
        sources: sum(read_pool(folder, names, sources=sources).prompts_by_source.values())
        for sources in (("cupl",), ("cupl", "dclip"), ("proapo",))
    }
    assert counts == {("cupl",): 2360, ("cupl", "dclip"): 2606, ("proapo",): 5798}
    large = read_pool(folder, names, concatenate="all")
    assert large.prompts_by_source["concat"] == 16 * 5206


@pytest.mark.parametrize("file", FILES["oxford_pets"])
def test_every_file_of_pets_is_a_pool_by_itself(file):
    names = classes_of("oxford_pets")
    pool = read_pool(POOLS / file, names)
    assert (pool.missing, pool.unused) == ((), ())
    source = read_source(POOLS / file)
    assert list(pool.prompts_by_source) == ["template", source.name]

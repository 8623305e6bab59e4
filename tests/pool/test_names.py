import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import FileFormatError
from promptboost.pool.names import imagenet_names, read_synonyms, resolve


def met(resolution):
    return {(item.class_name, item.entry): item.how for item in resolution.matches}


@pytest.mark.parametrize(
    ("name", "entry", "how"),
    [
        ("owl", "owl", "exact"),
        ("maine coon", "Maine Coon", "case"),
        ("hot dog", "hot_dog", "underscores"),
        ("Apply Lipstick", "ApplyLipstick", "camel case"),
        ("F-16A/B", "F-16ASLASHB", "slash"),
        ("2012 Acura RL Sedan", "Acura RL Sedan 2012", "year first"),
        ("Acura RL Sedan 2012", "2012 Acura RL Sedan", "year first"),
        ("indoor bakery", "bakery (indoor)", "brackets first"),
        ("Hand Stand Pushups", "HandstandPushups", "joined"),
        ("2012 Ram C/V Van", "Ram CV Van 2012", "joined"),
        ("airplane", "airplanes", "plural"),
        ("butterfly", "Butterflies", "plural"),
    ],
)
def test_how_names_meet(name, entry, how):
    others = ["zebra", "crab"]
    resolution = resolve([*others, name], [entry, *others])
    assert met(resolution)[name, entry] == how
    assert (resolution.missing, resolution.unused, resolution.ambiguous) == ((), (), ())


@pytest.mark.parametrize(
    ("name", "entry"),
    [("lake or sea", "sea or lake"), ("grass", "gras"), ("owl", "barn owl"), ("bus", "bu")],
)
def test_nothing_looser_is_tried(name, entry):
    resolution = resolve([name], [entry])
    assert (resolution.missing, resolution.unused) == ((name,), (entry,))


def test_the_stricter_spelling_wins():
    resolution = resolve(["hot dog"], ["Hot_Dog", "hot dog"])
    assert met(resolution) == {("hot dog", "hot dog"): "exact"}
    assert resolution.unused == ("Hot_Dog",)


def test_two_names_for_one_class_are_not_chosen_from():
    resolution = resolve(["hot dog", "owl"], ["Hot_Dog", "hot-dog", "owl"])
    assert [item.entries for item in resolution.ambiguous] == [("Hot_Dog", "hot-dog")]
    assert met(resolution) == {("owl", "owl"): "exact"}
    assert (resolution.missing, resolution.unused) == ((), ())


def test_one_name_for_two_classes_is_not_given_to_either():
    resolution = resolve(["glass", "glasses"], ["Glas ses"])
    assert met(resolution) == {("glasses", "Glas ses"): "joined"}
    resolution = resolve(["an owl", "anowl"], ["a-nowl"])
    assert resolution.ambiguous[0].classes == ("an owl", "anowl")
    # A class that has its own name still makes the plural of another doubtful.
    resolution = resolve(["sunglass", "sunglasses"], ["sunglasses", "sun glass es"])
    assert met(resolution) == {("sunglasses", "sunglasses"): "exact"}
    assert resolution.matches[0].class_name == "sunglasses"


def test_synonyms_join_all_names_they_give():
    resolution = resolve(
        ["face", "sea"],
        ["off-center face", "Centered_face", "ocean"],
        {"face": ["off-center face", "centered face"], "Sea": ["ocean"]},
    )
    assert met(resolution) == {
        ("face", "off-center face"): "synonym",
        ("face", "Centered_face"): "synonym",
        ("sea", "ocean"): "synonym",
    }
    assert resolution.entries("face") == ["off-center face", "Centered_face"]


def test_synonyms_work_both_ways_and_never_take_the_name_of_another_class():
    assert met(resolve(["ocean"], ["sea"], {"sea": ["ocean"]})) == {("ocean", "sea"): "synonym"}
    both = resolve(["spotted", "blotchy"], ["spotted"], {"blotchy": ["spotted"]})
    assert met(both) == {("spotted", "spotted"): "exact"}
    assert both.missing == ("blotchy",)
    # The class that the others are names of has them, whoever else is among them.
    shared = resolve(["spotted", "blotchy"], ["mottled"], {"blotchy": ["spotted", "mottled"]})
    assert met(shared) == {("blotchy", "mottled"): "synonym"}


def test_a_synonym_of_two_classes_is_ambiguous():
    resolution = resolve(["boxer", "pug"], ["dog"], {"boxer": ["dog"], "pug": ["dog"]})
    assert resolution.ambiguous[0].classes == ("boxer", "pug")
    assert (resolution.matches, resolution.missing, resolution.unused) == ((), (), ())


def test_wordnet_numbers_by_a_synonyms_file(tmp_path):
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps({"n00000001": "owl", "n00000002": "owl", "n00000003": "bat"}))
    resolution = resolve(
        ["owl", "bat"], ["n00000001", "n00000002", "n00000003"], read_synonyms(path)
    )
    assert resolution.entries("owl") == ["n00000001", "n00000002"]
    assert set(met(resolution).values()) == {"synonym"}


def test_wordnet_numbers_by_the_installed_libraries():
    table = imagenet_names()
    if not table:
        pytest.skip("timm and open_clip are not both installed")
    assert sum(map(len, table.values())) == 1000
    assert met(resolve(["rooster"], ["n01514668"])) == {("rooster", "n01514668"): "wnid"}
    assert met(resolve(["n01514668"], ["rooster"])) == {("n01514668", "rooster"): "wnid"}
    assert resolve(["rooster"], ["n99999999"]).unused == ("n99999999",)


@pytest.mark.parametrize("content", ["[]", '{"owl": 3}', '{"owl": [3]}'])
def test_synonyms_of_another_shape(tmp_path, content):
    path = tmp_path / "synonyms.json"
    path.write_text(content)
    with pytest.raises(FileFormatError, match="other name"):
        read_synonyms(path)


FLOWERS = ["pink-yellow dahlia", "ball moss", "rose"]


def test_names_that_benchmarks_are_known_by():
    entries = ["pink and yellow dahlia", "Air_Plant", "rose"]
    resolution = resolve(FLOWERS, entries)
    assert met(resolution)["ball moss", "Air_Plant"] == "known name"
    assert (resolution.missing, resolution.unused) == ((), ())
    # In either direction, and what somebody says goes first.
    assert resolve(entries, FLOWERS).missing == ()
    said = resolve(FLOWERS, entries, {"rose": ["air plant"]})
    assert met(said)["rose", "Air_Plant"] == "synonym"
    # Not for classes that are only partly those of the benchmark.
    assert resolve(["ball moss", "rose"], ["air plant", "rose"]).missing == ("ball moss",)


NAMES = st.lists(
    st.text("aAbB -_/s()1290", min_size=1, max_size=8), min_size=1, max_size=8, unique=True
)


@given(NAMES, NAMES, st.dictionaries(st.text("ab ", max_size=3), NAMES, max_size=3))
def test_every_name_is_accounted_for_once(classes, entries, synonyms):
    resolution = resolve(classes, entries, synonyms)
    told = [item.entry for item in resolution.matches]
    told += [*resolution.unused, *(name for item in resolution.ambiguous for name in item.entries)]
    assert sorted(told) == sorted(entries)
    doubtful = {name for item in resolution.ambiguous for name in item.classes}
    matched = {item.class_name for item in resolution.matches}
    assert matched | doubtful | set(resolution.missing) == set(classes)
    assert not (matched | doubtful) & set(resolution.missing)
    for name in set(classes) & set(entries):
        assert resolution.entries(name)[:1] == [name]

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import FileFormatError
from promptboost.pool.names import imagenet_names, match_names, read_synonyms


def met(matched):
    return {(item.class_name, item.entry): item.how for item in matched.matches}


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
    matched = match_names([*others, name], [entry, *others])
    assert met(matched)[name, entry] == how
    assert (matched.missing, matched.unused, matched.ambiguous) == ((), (), ())


@pytest.mark.parametrize(
    ("name", "entry"),
    [("lake or sea", "sea or lake"), ("grass", "gras"), ("owl", "barn owl"), ("bus", "bu")],
)
def test_nothing_looser_is_tried(name, entry):
    matched = match_names([name], [entry])
    assert (matched.missing, matched.unused) == ((name,), (entry,))


def test_the_stricter_spelling_wins():
    matched = match_names(["hot dog"], ["Hot_Dog", "hot dog"])
    assert met(matched) == {("hot dog", "hot dog"): "exact"}
    assert matched.unused == ("Hot_Dog",)


def test_two_names_for_one_class_are_not_chosen_from():
    matched = match_names(["hot dog", "owl"], ["Hot_Dog", "hot-dog", "owl"])
    assert [item.entries for item in matched.ambiguous] == [("Hot_Dog", "hot-dog")]
    assert met(matched) == {("owl", "owl"): "exact"}
    assert (matched.missing, matched.unused) == ((), ())


def test_one_name_for_two_classes_is_not_given_to_either():
    matched = match_names(["glass", "glasses"], ["Glas ses"])
    assert met(matched) == {("glasses", "Glas ses"): "joined"}
    matched = match_names(["an owl", "anowl"], ["a-nowl"])
    assert matched.ambiguous[0].classes == ("an owl", "anowl")
    # A class that has its own name still makes the plural of another doubtful.
    matched = match_names(["sunglass", "sunglasses"], ["sunglasses", "sun glass es"])
    assert met(matched) == {("sunglasses", "sunglasses"): "exact"}
    assert matched.matches[0].class_name == "sunglasses"


def test_synonyms_join_all_names_they_give():
    matched = match_names(
        ["face", "sea"],
        ["off-center face", "Centered_face", "ocean"],
        {"face": ["off-center face", "centered face"], "Sea": ["ocean"]},
    )
    assert met(matched) == {
        ("face", "off-center face"): "synonym",
        ("face", "Centered_face"): "synonym",
        ("sea", "ocean"): "synonym",
    }
    assert matched.entries("face") == ["off-center face", "Centered_face"]


def test_synonyms_work_both_ways_and_never_take_the_name_of_another_class():
    assert met(match_names(["ocean"], ["sea"], {"sea": ["ocean"]})) == {("ocean", "sea"): "synonym"}
    both = match_names(["spotted", "blotchy"], ["spotted"], {"blotchy": ["spotted"]})
    assert met(both) == {("spotted", "spotted"): "exact"}
    assert both.missing == ("blotchy",)
    # The class that the others are names of has them, whoever else is among them.
    shared = match_names(["spotted", "blotchy"], ["mottled"], {"blotchy": ["spotted", "mottled"]})
    assert met(shared) == {("blotchy", "mottled"): "synonym"}


def test_a_synonym_of_two_classes_is_ambiguous():
    matched = match_names(["boxer", "pug"], ["dog"], {"boxer": ["dog"], "pug": ["dog"]})
    assert matched.ambiguous[0].classes == ("boxer", "pug")
    assert (matched.matches, matched.missing, matched.unused) == ((), (), ())


def test_wordnet_numbers_by_a_synonyms_file(tmp_path):
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps({"n00000001": "owl", "n00000002": "owl", "n00000003": "bat"}))
    matched = match_names(
        ["owl", "bat"], ["n00000001", "n00000002", "n00000003"], read_synonyms(path)
    )
    assert matched.entries("owl") == ["n00000001", "n00000002"]
    assert set(met(matched).values()) == {"synonym"}


def test_wordnet_numbers_by_the_installed_libraries():
    table = imagenet_names()
    if not table:
        pytest.skip("timm and open_clip are not both installed")
    assert sum(map(len, table.values())) == 1000
    assert met(match_names(["rooster"], ["n01514668"])) == {("rooster", "n01514668"): "wnid"}
    assert met(match_names(["n01514668"], ["rooster"])) == {("n01514668", "rooster"): "wnid"}
    assert match_names(["rooster"], ["n99999999"]).unused == ("n99999999",)


@pytest.mark.parametrize("content", ["[]", '{"owl": 3}', '{"owl": [3]}'])
def test_synonyms_of_another_shape(tmp_path, content):
    path = tmp_path / "synonyms.json"
    path.write_text(content)
    with pytest.raises(FileFormatError, match="other name"):
        read_synonyms(path)


FLOWERS = ["pink-yellow dahlia", "ball moss", "rose"]


def test_names_that_benchmarks_are_known_by():
    entries = ["pink and yellow dahlia", "Air_Plant", "rose"]
    matched = match_names(FLOWERS, entries)
    assert met(matched)["ball moss", "Air_Plant"] == "known name"
    assert (matched.missing, matched.unused) == ((), ())
    # In either direction, and what somebody says goes first.
    assert match_names(entries, FLOWERS).missing == ()
    said = match_names(FLOWERS, entries, {"rose": ["air plant"]})
    assert met(said)["rose", "Air_Plant"] == "synonym"
    # Not for classes that are only partly those of the benchmark.
    assert match_names(["ball moss", "rose"], ["air plant", "rose"]).missing == ("ball moss",)


NAMES = st.lists(
    st.text("aAbB -_/s()1290", min_size=1, max_size=8), min_size=1, max_size=8, unique=True
)


@given(NAMES, NAMES, st.dictionaries(st.text("ab ", max_size=3), NAMES, max_size=3))
def test_every_name_is_accounted_for_once(classes, entries, synonyms):
    matched = match_names(classes, entries, synonyms)
    told = [item.entry for item in matched.matches]
    told += [*matched.unused, *(name for item in matched.ambiguous for name in item.entries)]
    assert sorted(told) == sorted(entries)
    doubtful = {name for item in matched.ambiguous for name in item.classes}
    found = {item.class_name for item in matched.matches}
    assert found | doubtful | set(matched.missing) == set(classes)
    assert not (found | doubtful) & set(matched.missing)
    for name in set(classes) & set(entries):
        assert matched.entries(name)[:1] == [name]

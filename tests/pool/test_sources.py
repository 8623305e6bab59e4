"""From files to pools: any known format, or a pool that was saved."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import FileFormatError, PoolError, SettingError
from promptboost.pool import build_pool, read_pool, save_pool
from promptboost.pool.io import load_pool
from promptboost.pool.readers import read_sources
from promptboost.pool.readers.source import Source
from promptboost.pool.sources import choose_sources, join_pool, match_classes, rename_classes
from tests.pool.pool_strategies import content, pools

NAMES = ["barn_owl", "bat"]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize(
    ("place", "content", "text", "source"),
    [
        ("a_prompts_full.json", {"Barn Owl": ["Big eyes."]}, "Big eyes.", "cupl_full"),
        (
            "descriptors_a.json",
            {"Barn Owl": ["big eyes"]},
            "barn owl, which has big eyes.",
            "dclip",
        ),
        ("a_20_prompts.json", {"BarnOwl": ["Big eyes."]}, "Big eyes.", "gpt4vis"),
        ("AWT/a.json", {"barn_owl": ["", "Big eyes."]}, "Big eyes.", "awt"),
        ("a.csv", "class,sentence\nbarn owl,Big eyes.\n", "Big eyes.", "a.csv"),
        ("a.txt", "Barn-Owl\tBig eyes.\n", "Big eyes.", "a.txt"),
        ("a.jsonl", '{"class": "barn owl", "text": "Big eyes."}', "Big eyes.", "a.jsonl"),
        ("a.json", {"birds": {"Barn owl": ["Big eyes."]}}, "Big eyes.", "clip_benchmark:birds"),
        ("a.json", {"Barn owl": ["Big eyes."]}, "Big eyes.", "a.json"),
    ],
)
def test_every_format_becomes_a_pool(tmp_path, place, content, text, source):
    pool = read_pool(write(tmp_path / place, content), NAMES, templates=["a {}."])
    assert pool.class_names == tuple(NAMES)
    last = pool.prompts("barn_owl")[-1]
    assert (last.text, last.source) == (text, source)
    assert (pool.missing, pool.unused) == (("bat",), ())


def test_a_folder_of_text_files_and_one_of_several_sources(tmp_path):
    write(tmp_path / "adapt" / "barn owl.txt", "A bird which hoots.")
    pool = read_pool(tmp_path / "adapt", NAMES)
    assert pool.texts("barn_owl")[-1] == "barn owl, which hoots."
    for name in ("CuPL_full", "DCLIP"):
        write(tmp_path / "birds" / "category_description" / f"{name}.json", {"bat": ["wings"]})
    pool = read_pool(tmp_path / "birds", NAMES, templates=["a {}."], concatenate="one")
    assert [(prompt.text, prompt.source, prompt.origin) for prompt in pool.prompts("bat")] == [
        ("a bat.", "template", None),
        ("wings", "proapo:CuPL_full", None),
        ("bat, which has wings.", "proapo:DCLIP", None),
        ("a photo of a bat. wings", "concat", "proapo:CuPL_full"),
        ("a photo of a bat. bat, which has wings.", "concat", "proapo:DCLIP"),
    ]


def test_templates_of_a_file_take_the_place_of_ours(tmp_path):
    path = write(tmp_path / "t.json", ["a drawing of a {}."])
    pool = read_pool(path, NAMES)
    assert pool.templates == ("a drawing of a {}.",)
    assert pool.prompts_by_source == {"template": 2}
    with pytest.raises(SettingError, match="templates of its own"):
        read_pool(path, NAMES, templates=["a {}."])


def test_names_that_fit_twice_or_not_at_all_are_an_error(tmp_path):
    two = write(tmp_path / "two.json", {"Bat": ["x"], "BAT": ["y"]})
    with pytest.raises(PoolError, match=r"'Bat' or 'BAT' could be 'bat'.*pool build .*--synonyms"):
        read_pool(two, NAMES)
    other = write(tmp_path / "other.json", {"elk": ["x"], "cow": ["y"]})
    with pytest.raises(PoolError, match=r"is about 'elk', 'cow', and the classes are 'barn_owl'"):
        read_pool(other, NAMES)
    blank = write(tmp_path / "blank.json", {"bat": [" "]})
    with pytest.raises(PoolError, match="only blank or damaged sentences"):
        read_pool(blank, NAMES)


def test_names_of_no_class_are_unused(tmp_path):
    path = write(tmp_path / "a.json", {"bat": ["wings"], "elk": ["horns"]})
    assert read_pool(path, NAMES).unused == ("elk",)


# --- a saved pool is the pool itself ---------------------------------------------------------------


def saved(tmp_path, names=("Bat", "Barn Owl"), **more):
    path = tmp_path / "pool.jsonl"
    options = {"templates": ["a {}.", "the {}."], "concatenate": "all"}
    words = {"cupl": {names[0]: ["wings"]}, "mine": {names[1]: ["eyes"]}}
    save_pool(build_pool(names, descriptions=words, **options, **more), path)
    return path


def test_a_saved_pool_gets_the_names_and_order_of_the_classes(tmp_path):
    path = saved(tmp_path)
    pool, before = read_pool(path, NAMES), load_pool(path)
    assert pool.class_names == tuple(NAMES)
    assert pool.templates == before.templates
    assert list(pool.prompts("bat")) == list(before.prompts("Bat"))
    assert list(pool.prompts("barn_owl")) == list(before.prompts("Barn Owl"))
    assert {prompt.origin for prompt in pool.prompts("bat")} == {None, "cupl"}


@given(pools())
def test_a_saved_pool_read_for_its_own_classes_is_the_same(tmp_path_factory, pool):
    path = tmp_path_factory.mktemp("pool") / "pool.jsonl"
    save_pool(pool, path)
    again = read_pool(path, pool.class_names)
    assert content(again) == content(pool)
    assert again.fingerprint == pool.fingerprint


def test_a_saved_pool_without_a_class_is_refused(tmp_path):
    with pytest.raises(PoolError, match=r"no prompts for the class 'elk' and 1 more; it has 'Bat'"):
        read_pool(saved(tmp_path), [*NAMES, "elk", "cow"])
    assert read_pool(saved(tmp_path), ["bat"]).unused == ("Barn Owl",)
    with pytest.raises(SettingError, match="has templates, concatenations and phrases"):
        read_pool(saved(tmp_path), NAMES, concatenate="one")


def test_a_pool_with_two_classes_for_one_is_refused():
    pool = build_pool(["n1", "n2"], templates=["a {}."])
    with pytest.raises(PoolError, match="'n1', 'n2' are one class, 'owl'"):
        rename_classes(pool, ["owl"], synonyms={"owl": ["n1", "n2"]})


def test_a_class_without_sentences_stays_known(tmp_path):
    path = tmp_path / "pool.jsonl"
    save_pool(build_pool(["Bat", "Elk"], descriptions={"Bat": ["wings"]}), path)
    assert read_pool(path, ["elk", "bat"]).missing == ("elk",)


def test_a_saved_pool_is_a_source_of_sentences_and_templates(tmp_path):
    sources = read_sources(saved(tmp_path))
    assert [(s.name, s.kind, dict(s.sentences), s.templates) for s in sources] == [
        ("template", "pool", {}, ("a {}.", "the {}.")),
        ("cupl", "pool", {"Bat": ["wings"]}, ()),
        ("mine", "pool", {"Barn Owl": ["eyes"]}, ()),
    ]
    met = [match_classes(source, NAMES) for source in sources]
    again = join_pool(met, NAMES, concatenate="all")
    assert sorted(again.texts("bat")) == sorted(
        text.replace("Bat", "bat") for text in load_pool(saved(tmp_path)).texts("Bat")
    )


def test_a_cut_off_pool_is_named(tmp_path):
    path = saved(tmp_path)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(FileFormatError, match="ends after"):
        read_pool(path, NAMES)


# --- some sources only -----------------------------------------------------------------------------


def meeting(name, kind="plain", texts=("x",)):
    return match_classes(Source(name, kind, Path(name), {"bat": tuple(texts)}), ["bat"])


MET = [
    meeting("cupl_full", "cupl", ["Wings."]),
    meeting("proapo:CuPL_base", "proapo", ["Ears."]),
    meeting("proapo:DCLIP", "proapo", ["claws"]),
    meeting("mine.json", "plain", ["fur"]),
]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (["cupl"], ["cupl_full", "proapo:CuPL_base"]),
        (["cupl_base"], ["proapo:CuPL_base"]),
        (["mine.json", "CUPL_FULL"], ["mine.json", "cupl_full"]),
        (["proapo", "dclip"], ["proapo:CuPL_base", "proapo:DCLIP"]),
        (["plain"], ["mine.json"]),
    ],
)
def test_sources_are_chosen_by_what_they_are_called(wanted, names):
    assert [item.source.name for item in choose_sources(MET, wanted)] == names


def test_an_unknown_source_is_answered_with_those_there_are():
    for wanted in (["awt"], ["cup"], [""]):
        with pytest.raises(SettingError, match="there is cupl_full, proapo:CuPL_base, proapo:DCL"):
            choose_sources(MET, wanted)
    with pytest.raises(SettingError, match="not one string"):
        choose_sources(MET, "cupl")


def test_ablation_pools_are_one_argument():
    found = join_pool(choose_sources(MET, ["dclip", "cupl"]), ["bat"], templates=["a {}."])
    assert found.texts("bat") == ["a bat.", "claws", "Wings.", "Ears."]


@given(st.lists(st.sampled_from(["Wings.", "wings.", "Ears.", "fur"]), min_size=1))
def test_sources_of_one_name_are_put_together_and_nothing_is_repeated(texts):
    half = len(texts) // 2
    met = [meeting("mine", texts=texts[:half]), meeting("mine", texts=texts[half:])]
    pool = join_pool(met, ["bat"], templates=["a {}."])
    assert {prompt.source for prompt in pool.prompts("bat")[1:]} == {"mine"}
    kept = [text.casefold() for text in pool.texts("bat")[1:]]
    assert kept == list(dict.fromkeys(text.casefold() for text in texts))

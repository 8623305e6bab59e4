import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import FileFormatError, PoolError, SettingError
from promptboost.estimator import PromptBoostClassifier
from promptboost.pool import TEMPLATES, build_pool, fill, read_pool, save_pool
from promptboost.pool.grammar import article, is_plural
from promptboost.pool.pool import union
from promptboost.pool.templates import clip_templates
from tests.pool.reader_tools import read_source

PLURALS = ["buildings", "people", "mice", "firemen", "skis", "koalas", "scissors", "sunflowers"]
SINGULARS = ["glass", "bus", "species", "lens", "iris", "cactus", "atlas", "specimen", "rhinoceros"]


@pytest.mark.parametrize("noun", PLURALS)
def test_plurals_have_no_article(noun):
    assert is_plural(noun)
    assert fill("a photo of a {}.", f"old {noun}") == f"a photo of old {noun}."


@pytest.mark.parametrize("noun", SINGULARS)
def test_singulars_that_look_like_a_plural_have_one(noun):
    assert not is_plural(noun)
    assert fill("a photo of a {}.", f"big {noun}") == f"a photo of a big {noun}."


@pytest.mark.parametrize(
    "noun", ["water", "grass", "white rice", "sea_ice", "ramen", "soccer juggling"]
)
def test_mass_nouns_have_no_article(noun):
    assert article(noun.replace("_", " ")) == ""


@pytest.mark.parametrize(
    ("article_", "names"),
    {
        "an ": "F-16A/B|8-ball|hour|A320|MRI scanner|SUV|x-ray|herb|unidentified object|1890 coin|11th",
        "a ": "unicorn|UFO|USB stick|U-boat|NASA rocket|BMW|2012 Audi|one-way sign|saint bernard",
        "the ": "sea|sky",
        "": "Mount Fuji|“Guernica”|a pug dog|the Louvre|blocks of flats|dogs (animals)",
    }.items(),
)
def test_articles_by_sound_and_kind_of_name(article_, names):
    for name in names.split("|"):
        assert (name, article(name)) == (name, article_)


def test_the_head_of_a_phrase_decides():
    assert article("chest of drawers") == "a "
    assert article("man with glasses") == "a "
    assert article("sea lion") == "a "


def test_a_noun_phrase_brings_its_article():
    assert fill("a photo of the {}.", "a pug dog") == "a photo of a pug dog."
    assert fill("A {} at night.", "a pug dog") == "A pug dog at night."
    assert fill("a tiny {}.", "a pug dog") == "a tiny pug dog."
    assert fill("{}", "a pug dog") == "a pug dog"


@given(st.sampled_from(TEMPLATES), st.from_regex(r"[a-z]{1,9}( [a-z]{1,9}){0,2}", fullmatch=True))
def test_a_template_never_doubles_an_article(template, name):
    words = fill(template, name).split()
    articles = {"a", "an", "the"}
    if not articles & set(name.split()):
        assert not any(
            first in articles and second in articles for first, second in pairwise(words)
        )


def test_clip_templates_are_filled_as_published():
    open_clip = pytest.importorskip("open_clip")
    for name in ("airplane", "F-16A/B", "hour", "buildings", "a pug dog", "water"):
        published = [template(name) for template in open_clip.OPENAI_IMAGENET_TEMPLATES]
        assert [fill(template, name) for template in clip_templates()] == published


def test_with_clip_templates_concatenations_are_literal_too():
    pytest.importorskip("open_clip")
    pool = build_pool(
        ["owl"], templates=clip_templates(), descriptions={"owl": ["eyes"]}, concatenate="one"
    )
    assert pool.texts("owl")[-1] == "a photo of a owl. eyes"


def test_the_phrases_of_a_pool_fill_its_templates():
    pool = build_pool(["pug", "owl"], templates=["a {}."], phrases={"pug": "a pug dog"})
    assert pool.phrases == ("a pug dog", "owl")
    assert pool.template_texts() == [["a pug dog."], ["an owl."]]
    assert union(build_pool(["eel"], templates=["a {}."]), pool).texts("pug") == ["a pug dog."]
    with pytest.raises(PoolError, match="'cat', which is no class"):
        build_pool(["pug"], phrases={"cat": "a cat"})


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("p.json", '{"pug": {"name": "a pug dog", "sentences": ["flat face"]}, "owl": ["eyes"]}'),
        ("p.csv", "class,sentence,name\npug,flat face,a pug dog\nowl,eyes,\n"),
        (
            "p.jsonl",
            '{"class": "pug", "text": "flat face", "name": "a pug dog"}\n'
            '{"class": "owl", "text": "eyes"}\n',
        ),
    ],
)
def test_files_of_sentences_name_the_classes(tmp_path, file, content):
    (tmp_path / file).write_text(content)
    pool = read_pool(tmp_path / file, ["pug", "owl"], templates=["a {}."])
    assert pool.texts("pug") == ["a pug dog.", "flat face"]
    assert pool.phrases == ("a pug dog", "owl")
    save_pool(pool, tmp_path / "saved.jsonl")
    saved = read_pool(tmp_path / "saved.jsonl", ["pug", "owl"])
    assert (saved, saved.phrases) == (pool, pool.phrases)
    both = [tmp_path / "saved.jsonl", tmp_path / file]  # a saved pool as one of several sources
    assert read_pool(both, ["pug", "owl"]).phrases == pool.phrases


def test_a_file_that_names_all_classes_is_read_as_sentences(tmp_path):
    file = tmp_path / "p.json"
    file.write_text(json.dumps({"pug": {"name": "a pug dog", "sentences": []}}))
    assert read_source(file).phrases == {"pug": "a pug dog"}


def test_a_class_with_two_names_is_an_error(tmp_path):
    (tmp_path / "p.csv").write_text("class,sentence,name\npug,x,a pug dog\npug,y,the pug\n")
    with pytest.raises(FileFormatError, match="two names, 'a pug dog' and 'the pug'"):
        read_source(tmp_path / "p.csv")


def test_bad_phrases_of_a_saved_pool_are_named(tmp_path):
    file = tmp_path / "p.jsonl"
    save_pool(build_pool(["pug"], templates=["a {}."], phrases={"pug": "a pug dog"}), file)
    file.write_text(file.read_text().replace('"a pug dog"}', '""}', 1))
    with pytest.raises(FileFormatError, match='line 1, needs "phrases"'):
        read_pool(file, ["pug"])


def test_the_estimator_fills_templates_with_noun_phrases():
    encoder = FakeEncoder(64)
    X = encoder.encode_texts(["red", "dark red", "blue", "light blue"])
    y = ["pug", "pug", "owl", "owl"]
    sentences = {"pug": ["red"], "owl": ["blue"]}
    model = PromptBoostClassifier(
        encoder, sentences, class_names={"pug": "a pug dog", "owl": "owl"}, templates=["a {}."]
    )
    model.fit(X, y)
    texts = set(model.ensemble_.texts())
    assert model.ensemble_.class_names == ("owl", "pug")
    assert texts <= {"a pug dog.", "red", "an owl.", "blue"}
    numbered = PromptBoostClassifier(
        encoder, class_names={0: "a pug dog", 1: "owl"}, templates=["a {}."]
    ).fit(X, [0, 0, 1, 1])
    assert numbered.ensemble_.class_names == ("pug dog", "owl")
    assert set(numbered.ensemble_.texts()) == {"a pug dog.", "an owl."}
    pool = build_pool(["pug", "owl"])
    with pytest.raises(SettingError, match="give build_pool the phrases"):
        PromptBoostClassifier(encoder, pool, class_names={"pug": "a pug", "owl": "owl"}).fit(X, y)

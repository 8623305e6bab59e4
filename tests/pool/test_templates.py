import sys

import pytest

from promptboost.errors import MissingExtraError, PoolError
from promptboost.pool import TEMPLATES, fill
from promptboost.pool.templates import check_templates, clip_templates, open_clip_words
from promptboost.pool.text import text_key


def test_templates_are_distinct_with_one_place_for_the_name():
    assert len(TEMPLATES) == 16
    assert check_templates(TEMPLATES) == TEMPLATES
    assert len({text_key(template).rstrip(".") for template in TEMPLATES}) == 16
    assert TEMPLATES[0] == "a photo of a {}."
    assert all(template.isascii() and template.endswith(".") for template in TEMPLATES)


def test_templates_have_an_article_that_fits_any_name():
    assert all(" a {}" in f" {template}" for template in TEMPLATES)


def test_clip_templates_are_the_80_of_open_clip():
    pytest.importorskip("open_clip")
    templates = clip_templates()
    assert len(templates) == 80
    assert check_templates(templates) == templates
    assert "itap of a {c}." in templates


def test_words_are_those_of_open_clip():
    open_clip = pytest.importorskip("open_clip")
    said = tuple(template("{c}") for template in open_clip.OPENAI_IMAGENET_TEMPLATES)
    assert clip_templates() == said
    assert open_clip_words("IMAGENET_CLASSNAMES") == tuple(open_clip.IMAGENET_CLASSNAMES)


def test_words_of_an_open_clip_that_keeps_them_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "open_clip").mkdir()
    words = "MINE = ['owl']\nOURS = (lambda c: f'a {c}!', lambda c: f'the {c}.')\n"
    (tmp_path / "open_clip" / "__init__.py").write_text(words)
    monkeypatch.delitem(sys.modules, "open_clip", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert open_clip_words("MINE") == ("owl",)
        assert open_clip_words("OURS") == ("a {}!", "the {}.")
    finally:
        sys.modules.pop("open_clip", None)


def test_without_open_clip_the_command_to_install_it_is_named(monkeypatch):
    open_clip_words.cache_clear()
    monkeypatch.setattr("promptboost.pool.templates.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[clip\]'"):
        clip_templates()


@pytest.mark.parametrize(
    ("name", "filled"),
    [
        ("insect", "a photo of an insect."),
        ("Owl", "a photo of an Owl."),
        ("car_or_truck", "a photo of a car or truck."),
        ("umbrella", "a photo of an umbrella."),
        ("unicycle", "a photo of a unicycle."),
        ("uninhabited island", "a photo of an uninhabited island."),
        ("ukulele", "a photo of a ukulele."),
        ("used car", "a photo of a used car."),
        ("European finch", "a photo of a European finch."),
        ("one-way sign", "a photo of a one-way sign."),
        ("onion", "a photo of an onion."),
        ("hourglass", "a photo of an hourglass."),
        ("house", "a photo of a house."),
        ("__odd__name_", "a photo of an odd name."),
        ("{} brace", "a photo of a {} brace."),
        (r"back\1slash", r"a photo of a back\1slash."),
    ],
)
def test_the_article_follows_the_sound_of_the_name(name, filled):
    assert fill("a photo of a {}.", name) == filled


def test_only_the_article_before_the_name_changes():
    assert fill("A {} on a table.", "apple") == "An apple on a table."
    assert fill("a toy {} in a box.", "apple") == "a toy apple in a box."
    assert fill("the {}.", "apple") == "the apple."
    assert fill("visa {}", "apple") == "visa apple"


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        (["fine {}", "no place"], "template 2 has 0 times"),
        (["{} and {}"], "template 1 has 2 times"),
        (["a photo of a {0}."], "template 1 has 0 times"),
        ([""], "template 1 is empty"),
        ([None], "template 1 must be a string"),
        (["\x1b {}"], r"template 1 contains the control character U\+001B"),
        ("a {}", "list of sentences"),
    ],
)
def test_bad_templates_are_named(templates, message):
    with pytest.raises(PoolError, match=message):
        check_templates(templates)

import pytest

from promptboost.errors import PoolError, SettingError
from promptboost.pool import TEMPLATES, build_pool


def test_our_templates_are_the_default():
    pool = build_pool(["owl", "bat"])
    assert pool.templates == TEMPLATES
    assert len(pool.texts("bat")) == 16
    assert pool.missing == pool.unused == ()


def test_pools_without_templates_need_descriptions_for_every_class():
    pool = build_pool(["owl"], templates=[], descriptions={"owl": ["eyes"]})
    assert pool.texts("owl") == ["eyes"]
    assert pool.template_texts() == [[]]
    with pytest.raises(PoolError, match="no prompts for the class 'bat' and 1 more"):
        build_pool(["owl", "bat", "cat"], templates=[], descriptions={"owl": ["eyes"], "bat": []})
    with pytest.raises(PoolError, match="no prompts for the class 'owl': add"):
        build_pool(["owl"], templates=[])


@pytest.mark.parametrize(
    ("class_names", "message"),
    [
        ([], "there are no classes"),
        ("owl", "list of names, not one string"),
        (["owl", "owl"], "same name, 'owl' and 'owl'"),
        (["hot dog", "Hot_dog"], "same name, 'hot dog' and 'Hot_dog'"),
        (["owl", " "], "class name 2 is blank; give every class a name"),
        (["owl", 3], "class name 2 must be a string"),
        (["ow\nl"], r"class name 1 contains the character U\+000A"),
        (["\x1b[1mowl"], r"class name 1 contains the control character U\+001B"),
    ],
)
def test_bad_class_names_are_named(class_names, message):
    with pytest.raises(PoolError, match=message):
        build_pool(class_names)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"templates": ["a photo"]}, PoolError, "template 1 has 0 times"),
        ({"descriptions": {"owl": "eyes"}}, PoolError, "'owl' needs a list of sentences"),
        ({"descriptions": {"owl": {"eyes"}}}, PoolError, "'owl' needs a list .*, not a set"),
        ({"descriptions": {"owl": ["eyes", None]}}, PoolError, "sentence 2 of the class 'owl'"),
        ({"concatenate": "some"}, SettingError, "'none', 'one' or 'all', not 'some'"),
        ({"concatenate": "one"}, PoolError, "needs descriptions"),
        (
            {"concatenate": "all", "templates": [], "descriptions": {"owl": ["eyes"]}},
            PoolError,
            "needs templates",
        ),
        ({"source": "\x1b"}, PoolError, "source contains the control character"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        build_pool(["owl"], **arguments)


def test_class_names_are_kept_as_they_are():
    names = ["Car_or_truck", " owl", "été", "t-shirt"]
    assert build_pool(names, templates=["a {}"]).class_names == tuple(names)


FILES = {
    "CuPL": {"Owl": ["An owl has round eyes.", "a hooked beak"], "cow": ["moo"]},
    "DCLIP": {"owl": ["A hooked  beak", "wings"], "bat": ["leather wings"], "cow": ["horns"]},
}


def test_several_sources_come_one_after_the_other():
    pool = build_pool(
        ["owl", "bat", "eel"], templates=["a {}."], descriptions=FILES, concatenate="all"
    )
    assert [(prompt.text, prompt.source, prompt.origin) for prompt in pool.prompts("owl")] == [
        ("an owl.", "template", None),
        ("An owl has round eyes.", "CuPL", None),
        ("a hooked beak", "CuPL", None),
        ("wings", "DCLIP", None),
        ("an owl. An owl has round eyes.", "concat", "CuPL"),
        ("an owl. a hooked beak", "concat", "CuPL"),
        ("an owl. wings", "concat", "DCLIP"),
    ]
    assert pool.missing == ("eel",)
    assert pool.unused == ("cow",)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"descriptions": {**FILES, "owl": ["eyes"]}}, PoolError, "mix sources and classes"),
        ({"descriptions": {"concat": FILES["CuPL"]}}, PoolError, "cannot be called 'concat'"),
        ({"descriptions": {"x": {}, " x": {}}}, PoolError, "two sources are called 'x'"),
        ({"descriptions": {"a\x1b": FILES["CuPL"]}}, PoolError, "the name of a source contains"),
        ({"descriptions": {"x": {"owl": "eyes"}}}, PoolError, "'owl' needs a list of sentences"),
    ],
)
def test_bad_sources_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        build_pool(["owl"], **{"descriptions": FILES, **arguments})

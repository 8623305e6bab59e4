import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import PoolError, SettingError
from promptboost.pool import PromptPool, build_pool
from promptboost.pool.pool import Prompt, deduplicate, from_sources, union
from promptboost.pool.text import text_key
from tests.pool.pool_strategies import NAMES, content, pools


def keys(pool, name):
    return [text_key(text) for text in pool.texts(name)] if name in pool else []


@given(pools(), pools())
def test_a_union_has_what_either_has_each_once_in_order(first, second):
    both = union(first, second)
    assert set(both.class_names) == {*first.class_names, *second.class_names}
    assert both.class_names[: len(first.class_names)] == first.class_names
    assert both.templates[: len(first.templates)] == first.templates
    assert set(both.templates) == {*first.templates, *second.templates}
    for name in both.class_names:
        expected = dict.fromkeys(keys(first, name) + keys(second, name))
        assert keys(both, name) == list(expected)
        if name in first:
            assert list(both.prompts(name))[: len(first.prompts(name))] == list(first.prompts(name))


@given(pools(), pools(), pools())
def test_unions_can_be_nested_and_repeated(a, b, c):
    assert (
        content(union(a, union(b, c))) == content(union(union(a, b), c)) == content(union(a, b, c))
    )
    assert content(union(a)) == content(union(a, a)) == content(a)


@given(pools(), pools())
def test_a_class_is_missing_while_nothing_is_said_of_it(first, second):
    both = union(first, second)
    for name in both.missing:
        assert {prompt.source for prompt in both.prompts(name)} == {"template"}
    for name in {*first.missing, *second.missing} - {*both.missing}:
        assert {prompt.source for prompt in both.prompts(name)} > {"template"}
    assert both.unused == ("cow",)


def test_a_name_that_another_pool_lacks_is_not_unused_in_the_union():
    owls = build_pool(["owl"], descriptions={"owl": ["eyes"], "bat": ["wings"]})
    assert owls.unused == ("bat",)
    assert union(owls, build_pool(["bat"])).unused == ()


def test_names_that_no_prompt_tells_apart_do_not_meet():
    with pytest.raises(PoolError, match="same name, 'hot dog' and 'Hot_dog'"):
        union(build_pool(["hot dog"]), build_pool(["Hot_dog"]))


@given(pools(), st.data())
def test_choosing_sources_keeps_their_prompts_in_order(pool, data):
    known = dict.fromkeys(
        source
        for name in pool.class_names
        for prompt in pool.prompts(name)
        for source in (prompt.source, prompt.origin)
        if source
    )
    assert content(from_sources(pool, list(known))) == content(pool)
    chosen = {"template", *data.draw(st.sets(st.sampled_from(list(known))))}
    some = from_sources(pool, chosen)
    assert content(from_sources(some, [s for s in chosen if has(some, s)])) == content(some)
    for name in pool.class_names:
        assert list(some.prompts(name)) == [
            prompt for prompt in pool.prompts(name) if {prompt.source, prompt.origin} & chosen
        ]
    eager = dataclasses.replace(
        pool, prompts_by_class=tuple(tuple(own) for own in pool.prompts_by_class)
    )
    assert content(from_sources(eager, chosen)) == content(some)


def test_prompts_written_by_hand_come_from_their_sources_too():
    own = (Prompt("Owl! eyes", "concat", "a {}", "eyes", "mine"), Prompt("Owl!", "theirs"))
    pool = PromptPool(("owl",), (), (own,))
    assert list(from_sources(pool, ["mine"]).prompts("owl")) == [own[0]]
    assert list(from_sources(pool, ["concat"]).prompts("owl")) == [own[0]]
    assert list(from_sources(pool, ["theirs"]).prompts("owl")) == [own[1]]


def has(pool, source):
    return any(
        source in (prompt.source, prompt.origin)
        for name in pool.class_names
        for prompt in pool.prompts(name)
    )


def test_sources_that_leave_nothing_are_refused():
    pool = build_pool(
        ["owl", "bat"], descriptions={"CuPL": {"owl": ["eyes"]}, "AWT": {"bat": ["wings"]}}
    )
    with pytest.raises(PoolError, match=r"'bat' has no prompts from CuPL.*\(template, CuPL, AWT\)"):
        from_sources(pool, ["CuPL"])
    with pytest.raises(SettingError, match="no source 'DCLIP'; it has template, CuPL, AWT"):
        from_sources(pool, ["template", "DCLIP"])
    with pytest.raises(SettingError, match=r"not one string: \['CuPL'\]"):
        from_sources(pool, "CuPL")


texts = st.sampled_from(["eyes", " EYES", "ey es", "beak", "Beak", "a beak", "A\tbeak"])
prompts = st.builds(Prompt, texts, st.sampled_from(["mine", "theirs"]))


@given(st.lists(st.lists(prompts, min_size=1).map(tuple), min_size=4, max_size=4))
def test_the_first_of_repeats_stays_and_the_others_are_counted(by_class):
    pool = PromptPool(NAMES, (), tuple(by_class))
    less, dropped = deduplicate(pool)
    for name, own in zip(NAMES, by_class, strict=True):
        first = {}
        for prompt in own:
            first.setdefault(text_key(prompt.text), prompt)
        assert list(less.prompts(name)) == list(first.values())
    assert dropped == sum(map(len, by_class)) - sum(map(len, less.prompts_by_class))
    again, none = deduplicate(less)
    assert content(again) == content(less)
    assert none == 0


@given(pools())
def test_built_pools_have_no_repeats(pool):
    less, dropped = deduplicate(pool)
    assert dropped == 0
    assert content(less) == content(pool)

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from promptboost.errors import PoolError
from promptboost.pool import build_pool
from promptboost.pool.pool import ClassPrompts, Prompt, of_sources, sentence_sources, union
from promptboost.pool.text import text_key
from tests.pool.pool_strategies import content, pools


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
    known = sentence_sources(pool)
    assume(known)
    assert content(of_sources(pool, ",".join(known))) == content(pool)
    chosen = data.draw(st.sets(st.sampled_from(known), min_size=1))
    expected = {
        name: [
            prompt
            for prompt in pool.prompts(name)
            if {prompt.source, prompt.origin} & {"template", *chosen}
        ]
        for name in pool.class_names
    }
    assume(all(expected.values()))
    some = of_sources(pool, ",".join(chosen))
    assert {name: list(some.prompts(name)) for name in some.class_names} == expected
    assert some.templates == pool.templates
    assert content(of_sources(some, ",".join(sentence_sources(some)))) == content(some)
    eager = dataclasses.replace(
        pool,
        prompts_by_class={
            name: ClassPrompts(own.phrase, list(own)) for name, own in pool.prompts_by_class.items()
        },
    )
    assert content(of_sources(eager, ",".join(chosen))) == content(some)


def test_sources_that_leave_nothing_are_refused():
    pool = build_pool(
        ["owl", "bat"],
        templates=[],
        descriptions={"CuPL": {"owl": ["eyes"]}, "AWT": {"owl": ["ears"], "bat": ["wings"]}},
    )
    with pytest.raises(PoolError, match=r"'bat' has no prompts from CuPL.*\(CuPL, AWT\)"):
        of_sources(pool, "CuPL")


texts = st.sampled_from(["eyes", " EYES", "ey es", "beak", "Beak", "a beak", "A\tbeak"])
prompts = st.builds(Prompt, texts, st.sampled_from(["mine", "theirs"]))


@given(st.lists(prompts, min_size=1))
def test_the_first_of_repeats_stays(repeated):
    distinct = ClassPrompts("owl", repeated).distinct()
    first = {}
    for prompt in repeated:
        first.setdefault(text_key(prompt.text), prompt)
    assert list(distinct) == list(first.values())
    assert list(distinct.distinct()) == list(distinct)


@given(pools())
def test_built_pools_have_no_repeats(pool):
    for prompts in pool.prompts_by_class.values():
        assert list(prompts.distinct()) == list(prompts)

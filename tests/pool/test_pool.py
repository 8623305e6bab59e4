import dataclasses
import hashlib
import json
import tracemalloc
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from promptboost.errors import PoolError
from promptboost.pool import build_pool, fill
from promptboost.pool.pool import ClassPrompts, Prompt, words_fingerprint
from promptboost.pool.templates import PLAIN_TEMPLATE
from promptboost.pool.text import text_key

words = st.sampled_from(["owl", "Owl", "red", "RED", "a", "the", "tail", "wing"])
sentences = st.lists(words, min_size=1, max_size=3).map("  ".join)
names = st.lists(
    st.sampled_from(["owl", "apple", "Car_or_truck", "dog", "hour", "unit"]),
    min_size=1,
    max_size=4,
    unique=True,
)
templates = st.lists(
    st.tuples(sentences, sentences).map(lambda parts: " {} ".join(parts)), max_size=4
)
concatenate = st.sampled_from(["none", "one", "all"])


@st.composite
def pools(draw):
    class_names = draw(names)
    return build_pool(
        class_names,
        templates=["a {}", *draw(templates)],
        descriptions={name: draw(st.lists(sentences, min_size=1)) for name in class_names},
        concatenate=draw(concatenate),
        source="descriptions:mine.json",
    )


@given(pools())
def test_no_class_has_a_prompt_twice_and_sources_come_in_order(pool):
    rank = {"template": 0, "descriptions:mine.json": 1, "concat": 2}
    for name in pool.class_names:
        prompts = pool.prompts(name)
        keys = [text_key(text) for text in pool.texts(name)]
        assert len(set(keys)) == len(keys) > 0
        ranks = [rank[prompt.source] for prompt in prompts]
        assert ranks == sorted(ranks)


@given(names, st.lists(sentences, min_size=1), templates, concatenate)
def test_the_first_of_equal_prompts_is_kept_and_none_is_lost(names, texts, templates, concatenate):
    pool = build_pool(
        names,
        templates=["a {}", *templates],
        descriptions=dict.fromkeys(names, texts),
        concatenate=concatenate,
    )
    joining = {"none": (), "one": (PLAIN_TEMPLATE,), "all": pool.templates}[concatenate]
    clean_texts = [" ".join(text.split()) for text in texts]
    for name in names:
        expected = [fill(template, name) for template in pool.templates] + clean_texts
        expected += [f"{fill(t, name)} {text}" for t in joining for text in clean_texts]
        first = {}
        for text in expected:
            first.setdefault(text_key(text), text)
        assert pool.texts(name) == list(first.values())


@given(pools())
def test_every_prompt_can_be_made_again_from_what_it_knows(pool):
    for name in pool.class_names:
        for prompt in pool.prompts(name):
            parts = [fill(prompt.template, name)] if prompt.template else []
            parts += [prompt.sentence] if prompt.sentence else []
            assert prompt.text == " ".join(parts)
            assert (prompt.source == "concat") == (len(parts) == 2)


@given(pools())
def test_template_texts_are_aligned_across_classes(pool):
    filled = pool.template_texts()
    assert len(filled) == len(pool.class_names)
    for name, texts in zip(pool.class_names, filled, strict=True):
        assert texts == [fill(template, name) for template in pool.templates]
        assert {text_key(text) for text in texts} <= {text_key(text) for text in pool.texts(name)}


def test_template_texts_stay_aligned_where_two_templates_meet():
    pool = build_pool(["pear", "rice"], templates=["a {}", "{}"])
    assert pool.template_texts() == [["a pear", "pear"], ["rice", "rice"]]
    assert pool.texts("pear") == ("a pear", "pear")
    assert pool.texts("rice") == ("rice",)


@given(pools(), st.data())
def test_the_fingerprint_is_that_of_the_content(pool, data):
    same = dataclasses.replace(pool)
    assert same.fingerprint == pool.fingerprint
    assert same == pool
    assert hash(same) == hash(pool)
    name = data.draw(st.sampled_from(pool.class_names))
    first, *rest = pool.prompts(name)
    changed = {
        "other text": (dataclasses.replace(first, text=first.text + "!"), *rest),
        "one fewer": tuple(rest),
        "turned round": (*rest, first),
        "moved border": (dataclasses.replace(first, text=first.text[:-1]), *rest),
    }
    if not rest:
        del changed["turned round"]
    for prompts in changed.values():
        by_class = {**pool.prompts_by_class, name: ClassPrompts(name, prompts)}
        other = dataclasses.replace(pool, prompts_by_class=by_class)
        assert other.fingerprint != pool.fingerprint
        assert other != pool


def test_the_fingerprint_sees_names_templates_and_which_class_has_what():
    def fingerprint(names=("owl", "bat"), templates=("a {}",), **sentences):
        return build_pool(names, templates=templates, descriptions=sentences).fingerprint

    prints = [
        fingerprint(),
        fingerprint(names=("bat", "owl")),
        fingerprint(names=("Owl", "bat")),
        fingerprint(templates=("the {}",)),
        fingerprint(owl=["x"]),
        fingerprint(bat=["x"]),
        fingerprint(bat=["x y"]),
        fingerprint(bat=["x", "y"]),
        fingerprint(owl=["x"], bat=["y"]),
    ]
    assert len(set(prints)) == len(prints)
    # A file written today must still be recognized tomorrow, on any machine.
    assert fingerprint(owl=["x"], bat=["é"]) == "caa644a2325bf343ee8433c81022e389"


def test_a_pool_does_not_change():
    names, texts = ["owl"], {"owl": ["eyes"]}
    pool = build_pool(names, templates=["a {}"], descriptions=texts)
    names.append("bat")
    texts["owl"].append("beak")
    assert pool.class_names == ("owl",)
    assert pool.texts("owl") == ["an owl", "eyes"]
    with pytest.raises(TypeError):
        pool.texts("owl")[0] = "beak"
    with pytest.raises(dataclasses.FrozenInstanceError):
        pool.class_names = ("bat",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        pool.prompts("owl")[0].text = "bat"


def test_statistics_count_and_go_into_json():
    pool = build_pool(
        ["owl", "bat", "cat"],
        templates=["a {}", "the {}", "A  {}"],
        descriptions={"Owl": ["eyes", "EYES", "beak"], "bat": ["wings"], "dog": ["fur"]},
        concatenate="one",
        source="descriptions:mine.json",
    )
    statistics = pool.statistics()
    assert json.loads(json.dumps(statistics)) == statistics
    assert statistics == {
        "classes": 3,
        "templates": 2,
        "prompts": 6 + 3 + 3,
        "prompts_per_class": {"min": 2, "median": 4.0, "max": 6},
        "prompts_by_source": {"template": 6, "descriptions:mine.json": 3, "concat": 3},
        "missing": ["cat"],
        "unused": ["dog"],
        "fingerprint": pool.fingerprint,
    }
    assert repr(pool) == "<PromptPool: 3 classes, 12 prompts>"


def test_an_unknown_class_is_named_with_those_there_are():
    names = [f"class {number}" for number in range(30)]
    with pytest.raises(PoolError, match=r"no class 'owl'; it has class 0, .*class 9, …$"):
        build_pool(names, templates=["a {}"]).prompts("owl")


# --- prompts that are made when they are asked for ----------------------------------------------


@given(pools(), st.data())
def test_made_prompts_are_those_of_a_plain_list(pool, data):
    for name in pool.class_names:
        made = pool.prompts(name)
        plain = list(made)
        assert len(made) == len(plain)
        assert made == plain
        assert made == tuple(plain)
        assert [made[i] for i in range(len(plain))] == plain
        assert [made[i] for i in range(-len(plain), 0)] == plain
        cut = data.draw(st.slices(len(plain)))
        assert list(made[cut]) == plain[cut]
        assert list(reversed(made)) == plain[::-1]
        texts = pool.texts(name)
        assert list(texts) == [texts[i] for i in range(len(texts))] == [p.text for p in plain]
        assert texts == tuple(texts)
        assert hash(texts) == hash(tuple(texts))
        assert texts != [*texts, "another"]
        assert texts != [*texts[:-1], "another"]
        assert ClassPrompts(name, plain) == made
        for beyond in (len(plain), -len(plain) - 1):
            with pytest.raises(IndexError):
                made[beyond]
            with pytest.raises(IndexError):
                texts[beyond]


odd_prompts = st.builds(
    Prompt,
    st.sampled_from(["an owl", "eyes", "an owl eyes", "", "the owl"]),
    st.sampled_from(["template", "mine", "concat"]),
    st.sampled_from([None, "a {}", "the {}"]),
    st.sampled_from([None, "eyes", "an owl", ""]),
    st.sampled_from([None, "mine"]),
)


@given(st.lists(odd_prompts))
def test_whatever_prompts_there_are_packing_changes_nothing(prompts):
    packed = ClassPrompts("owl", prompts)
    assert list(packed) == prompts
    assert list(packed.texts()) == [prompt.text for prompt in prompts]
    assert packed.counts() == Counter((prompt.source, prompt.origin) for prompt in prompts)
    twice = ClassPrompts("owl", prompts)
    twice.extend(packed)
    assert list(twice) == prompts * 2


def test_pairs_in_another_order_and_repeated_stay_as_they_are():
    def joined(start, sentence):
        template = {"an owl": "a {}", "the owl": "the {}"}[start]
        return Prompt(f"{start} {sentence}", "concat", template, sentence)

    twice = [joined("an owl", "eyes"), joined("the owl", "beak")] * 2
    assert list(ClassPrompts("owl", twice)) == twice
    assert list(ClassPrompts("owl", twice).distinct()) == twice[:2]
    # Nothing behind the space: the same words as without it.
    empty = [Prompt("an owl ", "concat", "a {}", ""), Prompt("an owl", "template", "a {}")]
    assert list(ClassPrompts("owl", empty).distinct()) == empty[:1]


@given(st.text(min_size=1), st.text(min_size=1))
def test_the_key_of_two_halves_is_that_of_the_whole(first, second):
    # What lets repeats among concatenations be found from the keys of their halves.
    assume(first.strip() and second.strip())
    assert text_key(f"{first} {second}") == f"{text_key(first)} {text_key(second)}"


def test_long_lists_have_the_fingerprint_of_one_json_list():
    for count in (0, 1, 4095, 4096, 4097, 9000):
        texts = [f'the "{number}" é' for number in range(count)]
        digest = hashlib.blake2b(json.dumps([["owl"], ["a {}"]]).encode(), digest_size=16)
        digest.update(json.dumps(texts).encode())
        assert words_fingerprint(("owl",), ("a {}",), [iter(texts)]) == digest.hexdigest()


def test_a_million_prompts_take_little_room():
    sentences = {f"kind {k}": [f"look {k} {s}" for s in range(125)] for k in range(100)}
    tracemalloc.start()
    try:
        pool = build_pool(
            list(sentences),
            templates=[f"a photo of a {{}}, number {n}." for n in range(80)],
            descriptions=sentences,
            concatenate="all",
        )
        assert pool.size == 100 * (80 + 125 + 80 * 125)
        characters = sum(len(text) for name in pool.class_names for text in pool.texts(name))
        assert characters > 30_000_000
        assert pool.statistics()["prompts_by_source"]["concat"] == 1_000_000
        assert pool.prompts("kind 99")[-1].text.endswith(" look 99 124")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50e6


def test_long_texts_are_shown_short():
    pool = build_pool(["owl"])
    assert repr(pool.texts("owl")) == (
        "<16 texts, from 'a photo of an owl.' to 'an owl by the water.'>"
    )
    assert repr(pool.prompts("owl")) == "<16 prompts>"


# --- embedding ----------------------------------------------------------------------------------

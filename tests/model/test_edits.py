import contextlib
import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import FileFormatError, InputError, LabelError, PoolError, SettingError
from promptboost.model import PromptEnsemble, Round
from promptboost.model.ensemble import EncoderRecord
from tests.model.ensembles import PATIENT, PROMPT, ensembles, pets

NAMES = ("cat", "dog", "cow")
SAME_KIND = ensembles(class_names=NAMES, temperature=1.0)


def without_history(ensemble):
    return dataclasses.replace(ensemble, history=()).to_json()


@given(ensembles())
@PATIENT
def test_truncating_to_all_rounds_changes_nothing(ensemble):
    assert ensemble.truncate(len(ensemble)).to_json() == ensemble.to_json()


@given(ensembles(), st.data())
@PATIENT
def test_truncating_keeps_the_first_rounds(ensemble, data):
    rounds = data.draw(st.integers(1, len(ensemble)))
    short = ensemble.truncate(rounds)
    assert short.rounds == ensemble.rounds[:rounds]
    assert short.sample_weights == ensemble.sample_weights
    again = data.draw(st.integers(1, rounds))
    assert short.truncate(again).rounds == ensemble.truncate(again).rounds


def test_truncating_is_told_and_checked():
    assert pets().truncate(np.int64(1)).history == ("truncated from 3 to 1 rounds",)
    for rounds in (0, 4, -1, 1.5, "2"):
        with pytest.raises(SettingError, match="from 1 to 3"):
            pets().truncate(rounds)


@given(SAME_KIND, st.data())
@PATIENT
def test_removing_is_embedding_without(ensemble, data):
    name = data.draw(st.sampled_from(NAMES))
    prompt = data.draw(st.sampled_from(list(ensemble.prompts(name))))
    rows = dict(zip(ensemble.texts(), FakeEncoder().encode_texts(ensemble.texts()), strict=True))
    if any(set(item.banks[name]) == {prompt} for item in ensemble.rounds):
        with pytest.raises(PoolError, match="nothing else is in"):
            ensemble.remove(prompt, name)
        return
    edited = ensemble.remove(prompt, name)
    assert prompt not in edited.prompts(name)
    expected = np.zeros((3, 32))
    for item in ensemble.rounds:
        for k, other in enumerate(NAMES):
            left = {t: c for t, c in item.banks[other].items() if (other, t) != (name, prompt)}
            copies = [rows[text] for text, count in left.items() for _ in range(count)]
            expected[k] += np.mean(copies, axis=0, dtype=np.float64)
    np.testing.assert_allclose(edited.embed(rows).weights, expected, atol=1e-5)
    assert len(edited.history) == len(ensemble.history) + 1


def test_removing_counts_what_it_took():
    edited = pets().remove("a red cat")
    assert edited.history == ("removed 'a red cat' from cat (4 copies in 2 rounds)",)
    assert [item.banks["cat"] for item in edited.rounds] == [
        {"a cat.": 1},
        {"a cat.": 2},
        {"my cat": 1},
    ]
    assert [item.banks["dog"] for item in edited.rounds] == [r.banks["dog"] for r in pets().rounds]


def two_pets():
    banks = {"cat": {"a pet": 1, "a cat": 1}, "dog": {"a pet": 2, "a dog": 1}}
    return PromptEnsemble(("cat", "dog"), (Round("{}", banks, 0, 0),))


def test_removing_can_be_for_one_class():
    assert two_pets().remove("a pet").history == (
        "removed 'a pet' from cat (1 copy in 1 round)",
        "removed 'a pet' from dog (2 copies in 1 round)",
    )
    edited = two_pets().remove("a pet", "cat")
    assert edited.rounds[0].banks == {"cat": {"a cat": 1}, "dog": {"a pet": 2, "a dog": 1}}


def test_removing_refuses_to_empty_a_bank():
    with pytest.raises(PoolError, match=r'in rounds\[1\]\.banks\["cat"\]\. Put another.*replace'):
        pets().remove("a cat.")
    many = dataclasses.replace(pets(), rounds=pets().rounds * 5)
    with pytest.raises(PoolError, match="and 2 more"):
        many.remove("a cat.")


def test_unknown_names_are_refused_with_a_guess():
    with pytest.raises(PoolError, match=r"has no prompt 'a red caat'. Near it: 'a red cat'"):
        pets().remove("a red caat")
    with pytest.raises(PoolError, match="The class 'dog' has no prompt 'a red cat'"):
        pets().remove("a red cat", "dog")
    with pytest.raises(PoolError):
        pets().replace("a cow", "a cat")
    for edit in (
        lambda e: e.remove("a cat.", "cta"),
        lambda e: e.rename_class("cta", "x"),
        lambda e: e.drop_class("cta"),
        lambda e: e.prompts("cta"),
    ):
        with pytest.raises(LabelError, match=r"no class 'cta'. Near it: 'cat'"):
            edit(pets())


def test_replacing_moves_the_copies():
    edited = pets().replace("a cat.", "a red cat")
    assert [item.banks["cat"] for item in edited.rounds] == [
        {"a red cat": 4},
        {"a red cat": 2},
        {"my cat": 1, "a red cat": 1},
    ]
    assert edited.history == ("replaced 'a cat.' by 'a red cat' in cat (3 copies in 2 rounds)",)
    assert two_pets().replace("a pet", "x", "dog").texts() == ["a cat", "a pet", "x", "a dog"]
    with pytest.raises(InputError, match="blank"):
        pets().replace("a cat.", " ")


def test_renaming_changes_the_label_only():
    encoder = FakeEncoder()
    edited = pets().rename_class("dog", "hound")
    assert edited.class_names == ("cat", "hound")
    assert edited.texts() == pets().texts()
    assert edited.sample_weights == pets().sample_weights
    assert edited.history == ("renamed dog to hound",)
    np.testing.assert_array_equal(edited.embed(encoder).weights, pets().embed(encoder).weights)
    back = edited.rename_class("hound", "dog")
    assert without_history(back) == without_history(pets())
    assert pets().rename_class("dog", "dog") == pets()


def test_renaming_refuses_a_name_that_is_taken_or_blank():
    with pytest.raises(LabelError, match="a class 'dog' already"):
        pets().rename_class("cat", "dog")
    with pytest.raises(InputError, match="blank"):
        pets().rename_class("cat", "")


@given(SAME_KIND, st.sampled_from(NAMES))
@PATIENT
def test_dropping_a_class_keeps_the_others(ensemble, name):
    edited = ensemble.drop_class(name)
    kept = [k for k, other in enumerate(NAMES) if other != name]
    encoder = FakeEncoder(dim=8)
    np.testing.assert_array_equal(
        edited.embed(encoder).weights, ensemble.embed(encoder).weights[kept]
    )
    assert edited.sample_weights == ensemble.sample_weights
    assert edited.history == (*ensemble.history, f"dropped {name}")


def test_dropping_refuses_to_leave_one_class():
    with pytest.raises(LabelError, match="needs two classes"):
        pets().drop_class("cat")


@given(SAME_KIND)
@PATIENT
def test_edits_leave_the_original_alone(ensemble):
    before = ensemble.to_json()
    ensemble.rename_class("cat", "lynx").drop_class("dog").truncate(1)
    ensemble.replace(ensemble.texts()[0], "x")
    assert ensemble.to_json() == before


# --- add and add_class --------------------------------------------------------------------------


@given(ensembles(), st.data(), st.integers(1, 9))
@PATIENT
def test_what_is_added_can_be_removed_again(ensemble, data, copies):
    name = data.draw(st.sampled_from(ensemble.class_names))
    edited = ensemble.add(name, "a sentence of its own", copies)
    assert without_history(edited.remove("a sentence of its own", name)) == without_history(
        ensemble
    )
    assert edited.history[-1].startswith(f"added 'a sentence of its own' to {name} (")
    for before, after in zip(ensemble.rounds, edited.rounds, strict=True):
        assert sum(after.banks[name].values()) == sum(before.banks[name].values()) + copies
        for other in set(ensemble.class_names) - {name}:
            assert after.banks[other] == before.banks[other]


@given(ensembles(), st.data(), st.integers(1, 9), st.integers(1, 9))
@PATIENT
def test_adding_twice_is_adding_once_more_copies(ensemble, data, one, two):
    name = data.draw(st.sampled_from(ensemble.class_names))
    text = data.draw(st.sampled_from(list(ensemble.prompts(name))) | PROMPT)
    twice = ensemble.add(name, text, one).add(name, text, two)
    assert without_history(twice) == without_history(ensemble.add(name, text, one + two))


@given(ensembles(), st.dictionaries(PROMPT, st.integers(1, 9), min_size=1, max_size=4))
@PATIENT
def test_a_class_that_is_added_can_be_dropped_again(ensemble, bank):
    name = "a class of its own"
    edited = ensemble.add_class(name, bank)
    assert edited.class_names == (*ensemble.class_names, name)
    assert without_history(edited.drop_class(name)) == without_history(ensemble)
    total = sum(bank.values())
    assert edited.prompts(name) == pytest.approx({text: n / total for text, n in bank.items()})
    listed = [text for text, copies in bank.items() for _ in range(copies)]
    assert without_history(ensemble.add_class(name, listed)) == without_history(edited)


def test_one_sentence_is_enough_for_a_class():
    assert pets().add_class("owl", "an owl").prompts("owl") == {"an owl": 1.0}


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda e: e.add("caat", "x"), LabelError, "no class 'caat'. Near it: 'cat'"),
        (lambda e: e.add("cat", " "), InputError, "sentences: is blank"),
        (lambda e: e.add("cat", "x", 0), PoolError, "whole number from 1 up, not 0"),
        (lambda e: e.add("cat", "x", 1.5), PoolError, "whole number from 1 up, not 1.5"),
        (lambda e: e.add("cat", 3), InputError, "must be a string"),
        (lambda e: e.add_class("cat", ["x"]), LabelError, "already: give it sentences with add"),
        (lambda e: e.add_class("owl", []), PoolError, "sentences: is empty"),
        (lambda e: e.add_class("", ["x"]), InputError, "is blank"),
        (lambda e: e.add_class("Cat", ["x"]), LabelError, "same name, 'cat' and 'Cat'"),
        (lambda e: e.add_class("ow\nl", ["x"]), LabelError, r"the character U\+000A"),
        (lambda e: e.rename_class("cat", "ow\nl"), LabelError, r"the character U\+000A"),
        (lambda e: e.rename_class("cat", "DOG"), LabelError, "same name, 'dog' and 'DOG'"),
    ],
)
def test_additions_that_cannot_be(edit, error, message):
    with pytest.raises(error, match=message):
        edit(pets())


def test_edits_keep_further_encoders():
    def learned(scale, other="b"):
        return pets(encoder_id="a", further_encoders=(EncoderRecord(other, "print", scale, 10.0),))

    assert (
        learned(30.0).add("cat", "a cat asleep").further_encoders == learned(30.0).further_encoders
    )


def test_no_edit_makes_a_text_that_no_file_can_hold():
    ensemble = PromptEnsemble(
        ("cat", "dog"), (Round("{}", {"cat": {"a cat": 1}, "dog": {"a dog": 1}}, 0.0, 0.1),)
    )
    most = ensemble.add("cat", "a pet", copies=2**63 - 1)
    assert PromptEnsemble.from_json(most.to_json()) == most
    with pytest.raises(PoolError, match="copies is too large"):
        ensemble.add("cat", "a pet", copies=2**63)
    with pytest.raises(PoolError, match="copies is too large"):
        most.add("cat", "a pet")


#: Edits of one kind on a class, whose sentences are drawn from a few.
STEP = st.tuples(
    st.sampled_from(["add", "add-class", "remove", "replace", "weight", "rename", "drop", "file"]),
    st.sampled_from(["cat", "dog", "owl"]),
    st.sampled_from(["a red cat", "a cat.", "s1", "s2", "s3"]),
    st.sampled_from(["s1", "s2", "s3"]),
)


def edited(ensemble, pins, kind, name, sentence, other):
    """Edit an ensemble, and a set of its (class, sentence) pins as one would by hand."""
    if kind == "add":
        return ensemble.add(name, sentence), pins | {(name, sentence)}
    if kind == "add-class":
        return ensemble.add_class(name, [sentence, other]), pins | {(name, sentence), (name, other)}
    if kind == "remove":
        return ensemble.remove(sentence, name), pins - {(name, sentence)}
    if kind == "replace":
        pins = (pins - {(name, sentence)}) | {(name, other)}
        return ensemble.replace(sentence, other, name), pins
    if kind == "weight":
        return ensemble.weight(name, sentence, 0.3), pins
    if kind == "rename":
        pins = {("owl" if name == n else n, text) for n, text in pins}
        return ensemble.rename_class(name, "owl"), pins
    if kind == "drop":
        return ensemble.drop_class(name), {(n, text) for n, text in pins if n != name}
    return type(ensemble).from_json(ensemble.to_json()), pins


@given(st.lists(STEP, max_size=12))
@PATIENT
def test_sentences_that_people_added_are_pinned_until_they_are_removed(steps):
    ensemble, pins = pets(), set()
    for step in steps:
        with contextlib.suppress(InputError):  # such as a class that is not there
            ensemble, pins = edited(ensemble, pins, *step)
        assert {(name, text) for name, ts in ensemble.pinned.items() for text in ts} == pins
        assert all(text in ensemble.prompts(name) for name, text in pins)


def test_files_without_pins_are_as_before_and_faulty_pins_are_refused():
    assert "pinned" not in pets().to_json()
    assert "pinned" not in pets().add("cat", "s1").remove("s1", "cat").to_json()
    text = pets().add("cat", "s1").to_json()
    for old, new, message in [
        ('"cat": [', '"cow": [', "There is no class 'cow'"),
        ('   "s1"\n  ]', "   7\n  ]", r'pinned\["cat"\]: must be a string'),
    ]:
        assert text.count(old) == 1
        with pytest.raises(FileFormatError, match=message):
            PromptEnsemble.from_json(text.replace(old, new))

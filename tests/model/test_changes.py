"""Edits as data: what is typed, what is applied, what is refused."""

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import assume, given

from promptboost.errors import InputError, SettingError
from promptboost.model import PromptEnsemble, Round
from promptboost.model.edits import (
    Change,
    apply_changes,
    original_names,
    parse_change,
)
from tests.model.ensembles import PATIENT, ensembles

BANKS = {"cat": {"a cat": 3, "a pet": 1}, "dog": {"a dog": 1}, "dog=big": {"a big dog": 2}}


def an_ensemble():
    return PromptEnsemble(tuple(BANKS), (Round("a {}", BANKS, 0.0, 0.0),))


@PATIENT
@given(ensembles(), st.floats(0.002, 0.998))
def test_a_share_is_met_within_a_thousandth_and_the_others_keep_their_proportions(ensemble, share):
    name = ensemble.class_names[0]
    text = next(iter(ensemble.prompts(name)))
    changed = ensemble.weight(name, text, share)
    for before, after in zip(ensemble.rounds, changed.rounds, strict=True):
        old, new = before.banks[name], after.banks[name]
        assert set(old) == set(new)
        if text not in old or len(old) == 1:
            assert old == new
            continue
        assert new[text] / sum(new.values()) == pytest.approx(share, abs=1e-3)
        others = [key for key in old if key != text]
        ratio = new[others[0]] / old[others[0]]
        assert all(new[key] == ratio * old[key] for key in others)
        assert before.banks[ensemble.class_names[1]] == after.banks[ensemble.class_names[1]]


def test_what_is_said_of_a_share_is_what_was_done():
    alone = Round("a {}", {**BANKS, "cat": {"a cat": 2}}, 0.0, 0.0)
    both = PromptEnsemble(tuple(BANKS), (*an_ensemble().rounds, alone))
    changed = both.weight("cat", "a cat", 0.5)
    said = "gave 'a cat' a share of 50% in cat (1 of 2 rounds: else it is the only one)"
    assert changed.history == (said,)
    assert changed.rounds[1] == alone
    (said,) = an_ensemble().weight("dog", "a dog", 0.5).history
    assert said.endswith("in dog (0 of 1 round: else it is the only one)")
    assert an_ensemble().weight("cat", "a cat", 0.5).history[0].endswith("in cat")


@pytest.mark.parametrize("share", [0, 1, -0.5, 2, float("nan"), "x"])
def test_a_share_is_between_zero_and_one(share):
    with pytest.raises(SettingError, match="between 0 and 1"):
        an_ensemble().weight("cat", "a pet", share)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("remove", "a pet", {"sentence": "a pet"}),
        ("remove", "cat=a pet", {"class_name": "cat", "sentence": "a pet"}),
        ("remove", "x=y", {"sentence": "x=y"}),
        ("add", "cat=a b=c", {"class_name": "cat", "sentence": "a b=c"}),
        ("add", "cat=a tabby=0.2", {"class_name": "cat", "sentence": "a tabby", "share": 0.2}),
        ("add", "cat = a tabby = 0.2", {"class_name": "cat", "sentence": "a tabby", "share": 0.2}),
        ("remove", "cat = a pet", {"class_name": "cat", "sentence": "a pet"}),
        ("rename-class", "cat = tabby", {"class_name": "cat", "to": "tabby"}),
        ("add-class", "owl = a bird", {"class_name": "owl", "sentences": ("a bird",)}),
        ("add", "dog=big=large", {"class_name": "dog=big", "sentence": "large"}),
        ("weight", "dog=a dog=0.5", {"class_name": "dog", "sentence": "a dog", "share": 0.5}),
        ("rename-class", "cat=tabby", {"class_name": "cat", "to": "tabby"}),
        (
            "add-class",
            "owl=a bird at night",
            {"class_name": "owl", "sentences": ("a bird at night",)},
        ),
        ("drop-class", "cat", {"class_name": "cat"}),
    ],
)
def test_what_is_typed(kind, text, expected):
    assert parse_change(kind, text, list(BANKS)) == Change(kind=kind, **expected)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("add", "cow=moo", "does not begin with a class and =; there are 'cat', 'dog'"),
        ("weight", "cat=a pet", "does not end with = and a share"),
        ("weight", "cat=a pet=much", "does not end with = and a share"),
        ("add-class", "owl", "type the name, =, and a sentence"),
    ],
)
def test_what_cannot_be_read(kind, text, message):
    with pytest.raises(SettingError, match=message):
        parse_change(kind, text, list(BANKS))


@pytest.mark.parametrize(
    "change",
    [
        Change(kind="remove"),
        Change(kind="add", class_name="cat"),
        Change(kind="add", class_name="cat", sentence=" "),
        Change(kind="add", sentence="x"),
        Change(kind="weight", class_name="cat", sentence="a pet"),
        Change(kind="rename-class", class_name="cat"),
        Change(kind="rename-class", class_name="cat", to="dog"),
        Change(kind="add-class", class_name="owl"),
        Change(kind="add-class", class_name="cat", sentences=("x",)),
        Change(kind="drop-class", class_name="cow"),
        Change(kind="remove", sentence="no such sentence"),
        Change(kind="remove", sentence="a dog", class_name="dog"),
    ],
)
def test_an_edit_that_cannot_be_made_changes_nothing(change):
    ensemble = an_ensemble()
    before = ensemble.to_json()
    with pytest.raises(InputError):
        change.apply(ensemble)
    assert ensemble.to_json() == before


def test_edits_are_data_and_come_back_the_same():
    changes = (
        Change(kind="rename-class", class_name="cat", to="tabby"),
        Change(kind="add", class_name="tabby", sentence="it sleeps", share=0.3),
        Change(kind="add-class", class_name="cat", sentences=("another cat",)),
        Change(kind="drop-class", class_name="dog"),
        Change(kind="replace", sentence="a big dog", to="a huge dog"),
    )
    read = msgspec.json.Decoder(tuple[Change, ...]).decode
    assert read(msgspec.json.encode(changes)) == changes
    edited = apply_changes(an_ensemble(), changes)
    assert edited.class_names == ("tabby", "dog=big", "cat")
    assert edited.prompts("tabby")["it sleeps"] == pytest.approx(0.3, abs=1e-3)
    assert edited.prompts("dog=big") == {"a huge dog": 1.0}
    assert len(edited.history) == 6
    assert original_names(list(BANKS), changes) == {"tabby": "cat", "dog=big": "dog=big"}
    with pytest.raises(msgspec.ValidationError, match="eval"):
        read(b'[{"kind": "eval", "class": "cat"}]')


@PATIENT
@given(ensembles(class_names=["a", "b", "c"]), st.data())
def test_renames_are_followed_back(ensemble, data):
    names = list(ensemble.class_names)
    changes = []
    for number in range(data.draw(st.integers(0, 4))):
        name = data.draw(st.sampled_from(names))
        to = data.draw(st.sampled_from(["a", "b", "c", f"new {number}"]))
        assume(to not in names)
        changes.append(Change(kind="rename-class", class_name=name, to=to))
        names[names.index(name)] = to
    found = original_names(ensemble.class_names, changes)
    assert [found[name] for name in names] == list(ensemble.class_names)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "CAT", "big-cat_", " "])
@pytest.mark.parametrize("kind", ["rename-class", "add-class"])
def test_a_class_name_that_no_fit_takes_is_refused(kind, name):
    ensemble = an_ensemble().rename_class("dog=big", "big cat")
    change = Change(kind=kind, class_name=name, sentences=("an owl",))
    if kind == "rename-class":
        change = Change(kind=kind, class_name="dog", to=name)
    with pytest.raises(InputError):
        change.apply(ensemble)


def test_sentences_are_cleaned_as_those_of_a_pool_are():
    changes = [
        Change(kind="add", class_name="cat", sentence=" a cat\non a mat ", share=0.5),
        Change(kind="replace", class_name="dog", sentence="a dog", to="a\tgood dog"),
        Change(kind="add-class", class_name="owl 🦉", sentences=("an  owl",)),
    ]
    edited = apply_changes(an_ensemble(), changes)
    assert edited.prompts("cat")["a cat on a mat"] == pytest.approx(0.5, abs=1e-3)
    assert (list(edited.prompts("dog")), list(edited.prompts("owl 🦉"))) == (
        ["a good dog"],
        ["an owl"],
    )
    with pytest.raises(InputError, match="control character"):
        Change(kind="add", class_name="cat", sentence="a \x1b[31mcat").apply(an_ensemble())

import pytest
from hypothesis import given

from promptboost.model.edits import difference
from tests.model.ensembles import PATIENT, ensembles, pets


@given(ensembles())
@PATIENT
def test_nothing_differs_from_itself(ensemble):
    found = difference(ensemble, ensemble)
    assert not found
    assert found.same == ensemble.n_prompts


@given(ensembles(class_names=["cat", "dog"]), ensembles(class_names=["cat", "dog"]))
@PATIENT
def test_the_difference_is_what_leads_from_one_to_the_other(one, other):
    found = difference(one, other).classes
    for name in ("cat", "dog"):
        weights, item = dict(one.prompts(name)), found.get(name)
        if item is not None:
            for text in item.removed:
                del weights[text]
            weights |= item.added
            weights |= {text: step["after"] for text, step in item.changed.items()}
            assert not item.added.keys() & one.prompts(name).keys()
        assert weights == pytest.approx(other.prompts(name))


@given(ensembles(class_names=["cat", "dog"]), ensembles(class_names=["cat", "dog"]))
@PATIENT
def test_the_other_way_round_it_is_turned_round(one, other):
    there, back = difference(one, other), difference(other, one)
    assert there.same == back.same
    assert there.classes.keys() == back.classes.keys()
    for name, first in there.classes.items():
        second = back.classes[name]
        assert (first.added, first.removed) == (second.removed, second.added)
        turned = {
            text: {"before": step["after"], "after": step["before"]}
            for text, step in second.changed.items()
        }
        assert first.changed == turned


def test_edits_are_found():
    after = pets().add("cat", "a cat asleep", 2).add_class("owl", ["an owl"])
    found = difference(pets(), after)
    assert found.added_classes == ["owl"]
    assert list(found.classes) == ["cat"]
    cat = found.classes["cat"]
    assert list(cat.added) == ["a cat asleep"]
    assert cat.removed == {}
    assert set(cat.changed) == {"a cat.", "a red cat", "my cat"}
    assert not difference(pets(), after, "dog")
    gone = difference(after, pets())
    assert gone.removed_classes == ["owl"]

import pytest
from hypothesis import given

from promptboost.model.difference import Difference
from tests.model.ensembles import PATIENT, ensembles, pets


@given(ensembles())
@PATIENT
def test_nothing_differs_from_itself(ensemble):
    found = Difference.between(ensemble, ensemble)
    assert not found
    assert found.same == ensemble.n_prompts


@given(ensembles(class_names=["cat", "dog"]), ensembles(class_names=["cat", "dog"]))
@PATIENT
def test_the_difference_is_what_leads_from_one_to_the_other(one, other):
    found = {item.name: item for item in Difference.between(one, other).classes}
    for name in ("cat", "dog"):
        weights, item = dict(one.prompts(name)), found.get(name)
        if item is not None:
            for text in item.removed:
                del weights[text]
            weights |= item.added
            weights |= {text: after for text, (_, after) in item.changed.items()}
            assert not item.added.keys() & one.prompts(name).keys()
        assert weights == pytest.approx(other.prompts(name))


@given(ensembles(class_names=["cat", "dog"]), ensembles(class_names=["cat", "dog"]))
@PATIENT
def test_the_other_way_round_it_is_turned_round(one, other):
    there, back = Difference.between(one, other), Difference.between(other, one)
    assert there.same == back.same
    for first, second in zip(there.classes, back.classes, strict=True):
        assert (first.added, first.removed) == (second.removed, second.added)
        assert first.changed == {text: (b, a) for text, (a, b) in second.changed.items()}


def test_edits_are_found():
    after = pets().add("cat", "a cat asleep", 2).add_class("owl", ["an owl"])
    found = Difference.between(pets(), after)
    assert found.added_classes == ("owl",)
    (cat,) = found.classes
    assert list(cat.added) == ["a cat asleep"]
    assert cat.removed == {}
    assert set(cat.changed) == {"a cat.", "a red cat", "my cat"}
    assert found.of_class("dog").classes == ()
    gone = Difference.between(after, pets())
    assert gone.removed_classes == ("owl",)
    assert gone.record()["removed_classes"] == ["owl"]

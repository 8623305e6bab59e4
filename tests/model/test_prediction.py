"""One record of a prediction, and its forms."""

import csv
import io
import json

import msgspec
import pytest

from promptboost.model.prediction import FIELDS, Prediction, csv_columns, csv_text

NAMES = ("cat", "dog", "owl")


def test_the_most_probable_class_is_predicted_unless_it_is_unsure():
    sure = Prediction.of("a.png", NAMES, [0.2, 0.5, 0.3], top_k=2)
    assert (sure.predicted, sure.probability, sure.unsure) == ("dog", 0.5, False)
    assert [(choice.class_name, choice.probability) for choice in sure.top] == [
        ("dog", 0.5),
        ("owl", 0.3),
    ]
    unsure = Prediction.of("a.png", NAMES, [0.2, 0.5, 0.3], min_probability=0.6)
    assert (unsure.predicted, unsure.probability, unsure.unsure) == (None, 0.5, True)
    assert unsure.top == sure.top[:1]
    at_least = Prediction.of("a.png", NAMES, [0.2, 0.5, 0.3], min_probability=0.5)
    assert at_least.predicted == "dog"


def test_equal_probabilities_keep_the_order_of_the_classes_or_of_the_given_class():
    assert Prediction.of("a", NAMES, [0.5, 0.5, 0.0]).predicted == "cat"
    given = Prediction.of("a", NAMES, [0.5, 0.5, 0.0], top_k=9, best=1)
    assert [choice.class_name for choice in given.top] == ["dog", "cat", "owl"]


def test_json_has_the_same_fields_for_every_image_and_unset_ones_are_left_out():
    good = Prediction.of("a.png", NAMES, [0.2, 0.5, 0.3])
    bad = Prediction(image="b\x7f.png", error="the file is empty")
    for prediction in (good, bad):
        assert tuple(prediction.record()) == FIELDS
        assert json.loads(prediction.to_json()) == prediction.record()
        assert json.loads(msgspec.json.encode(prediction)) == prediction.record()
        assert msgspec.json.decode(prediction.to_json(), type=Prediction) == prediction
        assert prediction.to_json().isascii()
        assert prediction.to_json().isprintable()
    measured = Prediction.of("a.png", NAMES, [0.2, 0.5, 0.3], label="cat", zero_shot="owl")
    assert tuple(measured.record()) == (*FIELDS, "label", "zero_shot")


@pytest.mark.parametrize(("top_k", "abstain"), [(1, False), (1, True), (3, False)])
def test_csv_has_a_cell_for_each_column(top_k, abstain):
    predictions = [
        Prediction.of("a.png", NAMES, [0.2, 0.5, 0.3], top_k, 0.6 if abstain else 0.0),
        Prediction(image="b.png", error="no such file"),
    ]
    columns = csv_columns(top_k, abstain=abstain)
    good, bad = csv.DictReader(io.StringIO(csv_text(predictions, columns)))
    assert list(good) == columns
    assert good["predicted"] == ("" if abstain else "dog")
    assert (good["probability"], good["unsure"]) == ("0.500000", str(abstain).lower())
    assert bad == dict.fromkeys(columns, "") | {
        "image": "b.png",
        "unsure": "false",
        "error": "no such file",
    }
    if top_k == 3:
        assert (good["class_3"], good["probability_3"]) == ("cat", "0.200000")

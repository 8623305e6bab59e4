import copy
import dataclasses
import json

import pytest

from promptboost.model import PromptEnsemble, Round
from promptboost.report.checks import RULES, foreign_names, run_checks
from promptboost.report.page import read_run
from promptboost.run.results import Results
from tests.report.run_tools import without_held_out


@pytest.fixture(scope="module")
def run(emoji_run):
    return read_run(emoji_run)


@pytest.fixture
def record(fit):
    return copy.deepcopy(fit[1])


def answers(run, record=None, ensemble=None):
    if record is not None:
        results = Results.from_record(json.loads(json.dumps(record)))
        run = dataclasses.replace(run, results=results)
    if ensemble is not None:
        run = dataclasses.replace(run, ensemble=ensemble)
    return {check.rule.code: check.answer for check in run_checks(run)}


def set_accuracy(record, accuracies):
    for row in record["methods"]:
        row["accuracy"] = accuracies.get(row["name"], row["accuracy"])


def tell(items, **fields):
    return PromptEnsemble(("cat", "dog"), tuple(items), **fields)


def weak(error=0.1, template_error=0.2, cat="a cat", dog="a dog"):
    return Round("a {}", {"cat": {cat: 1}, "dog": {dog: 1}}, error, template_error)


def test_codes_are_unique_and_in_order():
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))


def test_every_answer_is_complete(run):
    for check in run_checks(run):
        assert check.answer.summary.endswith(".")
        assert (check.answer.type_next is not None) == (check.answer.outcome == "found")


def test_nothing_held_out_is_found_and_silences_what_needs_it(run, record):
    assert answers(run)["PB001"].outcome == "fine"
    found = answers(run, without_held_out(record))
    assert found["PB001"].outcome == "found"
    for code in ("PB002", "PB003", "PB004", "PB006"):
        assert found[code].outcome == "not applicable"


@pytest.mark.parametrize(
    ("zero", "boosted", "outcome"), [(0.5, 0.6, "fine"), (0.5, 0.5, "found"), (0.6, 0.5, "found")]
)
def test_zero_shot(run, record, zero, boosted, outcome):
    set_accuracy(record, {"zero-shot": zero, "promptboost": boosted})
    assert answers(run, record)["PB002"].outcome == outcome


def test_logistic(run, record):
    set_accuracy(record, {"logistic": 0.7, "promptboost": 0.6})
    assert answers(run, record)["PB003"].outcome == "found"
    set_accuracy(record, {"logistic": 0.6})
    assert answers(run, record)["PB003"].outcome == "fine"
    record["methods"] = [row for row in record["methods"] if row["name"] != "logistic"]
    assert answers(run, record)["PB003"].outcome == "not applicable"


def test_interval(run, record):
    assert answers(run, record)["PB004"].outcome == "found"  # 96 images
    record["task"]["held_out_images"] = 1000
    assert answers(run, record)["PB004"].outcome == "fine"


def staged(values):
    return [{"round": m, "accuracy": v, "learn_accuracy": 1} for m, v in enumerate(values, 1)]


def test_still_improving(run, record):
    record["staged"] = staged([0.5 + 0.01 * m for m in range(20)])
    answer = answers(run, record)["PB005"]
    assert answer.outcome == "found"
    assert answer.type_next.endswith("--rounds 40")
    record["staged"] = staged([0.6] * 20)
    assert answers(run, record)["PB005"].outcome == "fine"
    record["staged"] = staged([0.1, 0.9])
    assert answers(run, record)["PB005"].outcome == "not applicable"


def test_classes_that_lost(run, record):
    record["per_class"] = [
        {"class": "worse", "count": 10, "accuracy": {"zero-shot": 0.5, "promptboost": 0.3}},
        {"class": "few", "count": 2, "accuracy": {"zero-shot": 1.0, "promptboost": 0.0}},
        {"class": "better", "count": 10, "accuracy": {"zero-shot": 0.3, "promptboost": 0.5}},
        {"class": "unknown", "count": 0, "accuracy": {"zero-shot": None, "promptboost": None}},
    ]
    answer = answers(run, record)["PB006"]
    assert answer.outcome == "found"
    assert [line.split(":")[0] for line in answer.details] == ["worse"]
    assert answer.type_next == "promptboost show emoji-4 --class worse"
    record["per_class"] = record["per_class"][1:]
    assert answers(run, record)["PB006"].outcome == "fine"


def test_transfer(run, record):
    assert answers(run, record)["PB007"].outcome == "fine"
    record["transfers"][0]["encoder"] = "fake:64-1; ls"
    record["transfers"][0]["accuracy"]["promptboost"] = 0.4
    answer = answers(run, record)["PB007"]
    assert answer.outcome == "found"
    assert answer.type_next.endswith("--encoder 'fake:64-1; ls'")
    # A residual that was learned there does not hide that the sentences gained nothing.
    record["transfers"][0]["accuracy"] |= {"text": 0.4, "promptboost": 0.9}
    assert answers(run, record)["PB007"].outcome == "found"
    record["transfers"] = []
    assert answers(run, record)["PB007"].outcome == "not applicable"


def test_figures_of_another_text(run, record):
    assert answers(run, record)["PB008"].outcome == "not applicable"
    record["ensemble_fingerprint"] = run.ensemble.fingerprint
    assert answers(run, record)["PB008"].outcome == "fine"
    answer = answers(run, record, run.ensemble.truncate(3))["PB008"]
    assert answer.outcome == "found"
    assert answer.type_next == "promptboost evaluate emoji-4 DATA"
    assert next(rule for rule in RULES if rule.code == "PB008").severity == "issue"


def test_uneven_classes(run, record):
    assert answers(run)["PB017"].outcome == "fine"
    sizes = dict.fromkeys(record["task"]["class_sizes"], 6)
    first, second, third, *_ = sizes
    record["task"]["class_sizes"] = sizes | {first: 2}
    assert answers(run, record)["PB017"].summary == "Classes have 2 to 6 training images."
    # Classes without any image are predicted by their sentences, and are not called small.
    record["task"]["class_sizes"] = sizes | {first: 1, second: 7, third: 0}
    answer = answers(run, record)["PB017"]
    assert answer.outcome == "found"
    assert answer.summary == (
        f"The smallest class, {first}, has 1 training image, the largest, {second}, has 7."
    )
    assert answer.details == (f"{first}: 1 image",)
    record["task"]["class_sizes"] = None
    assert answers(run, record)["PB017"].outcome == "not applicable"


def test_fewer_shots(run, record):
    assert answers(run, record)["PB010"].outcome == "fine"
    record["task"]["learn_images"] -= 1
    assert answers(run, record)["PB010"].outcome == "found"
    record["task"]["shots"] = None
    assert answers(run, record)["PB010"].outcome == "not applicable"


def test_unreadable_images(run, record):
    assert "bird/empty.png: the file is empty" in answers(run)["PB011"].details
    record["task"]["bad_images"] = []
    assert answers(run, record)["PB011"].outcome == "fine"


def test_suspected_labels(run):
    weights = dict.fromkeys("abcdefghi", 1.0) | {"j": 5.0}
    answer = answers(run, ensemble=tell([weak()] * 2, sample_weights=weights))["PB012"]
    assert [line.split(":")[0] for line in answer.details] == ["j"]
    assert "3.6 ×" in answer.details[0]
    even = tell([weak()] * 2, sample_weights=dict.fromkeys("abc", 1 / 3))
    assert answers(run, ensemble=even)["PB012"].outcome == "fine"
    assert answers(run, ensemble=tell([weak()]))["PB012"].outcome == "not applicable"


def test_after_one_round_labels_are_suspected_by_what_is_not_recognized(run, record):
    one = tell([weak()], sample_weights={"a": 0.5, "b": 0.5})
    right = {"image": "a", "label": "cat", "predicted": "cat", "weight": 0.5}
    wrong = right | {"image": "b", "predicted": "dog"}
    boosted = next(row for row in record["methods"] if row["name"] == "promptboost")
    record["hardest"], boosted["learn_accuracy"] = [right, wrong], 0.9
    answer = answers(run, record, one)["PB012"]
    assert answer.details == ("b: labeled cat, predicted dog",)
    assert answer.summary == "1 of the 2 hardest training images: predicted wrongly."
    boosted["learn_accuracy"] = 0.6
    assert answers(run, record, one)["PB012"].outcome == "not applicable"
    record["hardest"], boosted["learn_accuracy"] = [right], 1.0
    assert answers(run, record, one)["PB012"].outcome == "fine"


def test_checks_of_rounds_make_sense_for_one(run):
    weights = dict.fromkeys(map(str, range(40)), 1.0) | {"0": 60.0}
    found = answers(run, ensemble=tell([weak(0.1, 0.2)], sample_weights=weights))
    assert found["PB013"].outcome == "not applicable"
    assert "one round" in found["PB013"].summary
    said = found["PB023"].summary.replace("\u202f", " ")
    assert said.endswith("20.0% with the template alone, 10.0% with the chosen prompts.")
    assert answers(run, ensemble=tell([weak(0.2, 0.2)]))["PB023"].outcome == "found"


def test_weight_on_few(run):
    names = [f"{i}.png" for i in range(40)]
    heavy = dict.fromkeys(names, 1.0) | {"0.png": 60.0}
    answer = answers(run, ensemble=tell([weak()] * 4, sample_weights=heavy))["PB013"]
    assert answer.outcome == "found"
    assert answer.summary == "Half of all weight is on 1 of 40 images."
    assert answer.type_next.endswith("--rounds 2")
    even = tell([weak()] * 2, sample_weights=dict.fromkeys(names, 1.0))
    assert answers(run, ensemble=even)["PB013"].summary.startswith("Half of all weight is on 20 ")
    assert answers(run, ensemble=even)["PB013"].outcome == "fine"
    assert answers(run, ensemble=tell([weak()]))["PB013"].outcome == "not applicable"


def test_descriptions(run, record):
    assert answers(run)["PB020"].outcome == "fine"
    assert answers(run)["PB021"].details == ("brid",)
    record["pool"] |= {"missing": ["bird"], "unused": []}
    assert answers(run, record)["PB020"].details == ("bird",)
    assert answers(run, record)["PB021"].outcome == "fine"


def test_prompt_that_names_another_class(run):
    answer = answers(run, ensemble=tell([weak(cat="A Dog-like animal")]))["PB022"]
    assert answer.details == ("cat: “A Dog-like animal” names dog",)
    assert (
        answer.type_next == "promptboost edit emoji-4 -o NEW_RUN --remove 'cat=A Dog-like animal'"
    )
    assert answers(run, ensemble=tell([weak()]))["PB022"].outcome == "fine"


def test_longer_names_come_first():
    banks = {
        "cat": {"a tiger": 1, "a cat": 1},
        "tiger_cat": {"a tiger cat": 1, "a tiger and a cat": 1},
        "tiger": {"tigers are big": 1},
    }
    ensemble = PromptEnsemble(tuple(banks), (Round("a {}", banks, 0.1, 0.1),))
    assert list(foreign_names(ensemble)) == [
        ("cat", "a tiger", "tiger"),
        ("tiger_cat", "a tiger and a cat", "tiger"),
    ]


def test_pool_of_little_use(run):
    idle, good = weak(error=0.2), weak()
    assert answers(run, ensemble=tell([idle, idle, good]))["PB023"].outcome == "found"
    assert answers(run, ensemble=tell([idle, good]))["PB023"].outcome == "fine"


def test_content_of_descriptions(run, record):
    record["controls"] = None
    assert answers(run, record)["PB024"].outcome == "not applicable"
    controls = {"text": 0.5, "swapped": 0.25, "random_words": 0.375, "gain": 0.125}
    answer = answers(run, record | {"controls": controls})["PB024"]
    assert answer.outcome == "fine"
    assert answer.summary.replace("\u202f", " ") == (
        "50.0% by the text; refitted with descriptions of other classes 25.0%, with random words 37.5%: "
        "12.5 points come from what the descriptions say."
    )
    controls |= {"random_words": 0.5, "gain": 0.0}
    assert answers(run, record | {"controls": controls})["PB024"].outcome == "found"
    assert answers(run, without_held_out(record) | {"controls": controls})[
        "PB024"
    ].summary.endswith("(training images).")

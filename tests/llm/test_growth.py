import json
import re

from hypothesis import given
from hypothesis import strategies as st

from promptboost.data.source import DataSource
from promptboost.llm.growth import grow_prompts
from promptboost.llm.questions import Pair, confused_pairs, pair_questions


def line(true, predicted, count):
    return {"true": true, "predicted": predicted, "count": count, "pictures": []}


def test_both_directions_are_one_pair():
    found = [line("a", "b", 3), line("c", "a", 4), line("b", "a", 2)]
    assert confused_pairs(found, 10) == [Pair("a", "b", 5), Pair("c", "a", 4)]
    assert confused_pairs([], 3) == []


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd"), st.integers(1, 9))),
    st.integers(1, 12),
)
def test_no_image_is_lost_and_the_most_frequent_come_first(lines, most):
    found = confused_pairs([line(*entry) for entry in lines if entry[0] != entry[1]], 12)
    assert sum(pair.count for pair in found) == sum(n for a, b, n in lines if a != b)
    assert [p.count for p in found] == sorted((p.count for p in found), reverse=True)
    assert len({frozenset((pair.first, pair.second)) for pair in found}) == len(found)
    assert (
        confused_pairs([line(*entry) for entry in lines if entry[0] != entry[1]], most)
        == found[:most]
    )


def test_both_classes_of_a_pair_are_asked_about_and_name_no_other():
    asked = pair_questions([Pair("owl", "bat", 3), Pair("owl", "elk", 1)], ["owl", "bat", "elk"], 4)
    assert [re.findall(r'"(\w+)"', question.text)[:2] for question in asked] == [
        ["owl", "bat"],
        ["bat", "owl"],
        ["owl", "elk"],
        ["elk", "owl"],
    ]
    assert [question.class_name for question in asked] == ["owl", "bat", "owl", "elk"]
    assert asked[1].others == ("owl", "elk")


def test_what_was_there_stays_first(tmp_path):
    prompts = tmp_path / "sentences.json"
    prompts.write_text(json.dumps({"Barn owl": ["Round eyes."], "sushi": ["Rice."]}))
    grown = grow_prompts(
        str(prompts),
        DataSource.parse("images"),
        ["barn_owl", "bat", "elk"],
        {"barn_owl": ["A beak.", "round  eyes."], "bat": ["Wings."]},
        tmp_path / "grown.json",
    )
    assert grown == {"barn_owl": ["Round eyes.", "A beak."], "bat": ["Wings."]}

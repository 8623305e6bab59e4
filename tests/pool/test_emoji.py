"""The sentences promptboost comes with: enough of them, well formed, and about their class."""

import json
import re
from importlib import resources

import pytest

from promptboost.pool import build_pool
from promptboost.pool.readers import emoji_descriptions
from promptboost.pool.text import text_key
from tests.pool.reader_tools import read_sentences

CLASSES = [
    "bird",
    "fruit",
    "vegetable",
    "flower",
    "fish",
    "insect",
    "tool",
    "clothing",
    "shoe",
    "musical instrument",
    "car or truck",
    "boat or ship",
    "aircraft",
    "building",
    "sports ball",
    "dessert",
    "drink",
    "dog or cat",
    "clock or watch",
    "computer or phone",
]
SENTENCES = emoji_descriptions()
ALL = [(name, sentence) for name, sentences in SENTENCES.items() for sentence in sentences]


def test_the_classes_are_those_of_the_dataset():
    assert list(SENTENCES) == CLASSES


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_has_at_least_40_sentences_of_different_beginnings(name):
    assert len(SENTENCES[name]) >= 40
    beginnings = {" ".join(sentence.split()[:3]) for sentence in SENTENCES[name]}
    assert len(beginnings) >= 0.75 * len(SENTENCES[name])


def test_sentences_are_plain_text_of_4_to_25_words():
    for name, sentence in ALL:
        assert 4 <= len(sentence.split()) <= 25, (name, sentence)
        assert re.fullmatch(r"[A-Za-z][A-Za-z' ,-]*[a-z]", sentence), (name, sentence)


def test_no_sentence_occurs_twice_even_in_two_classes():
    keys = [text_key(sentence) for _, sentence in ALL]
    assert len(set(keys)) == len(keys)


def test_no_sentence_begins_with_the_name_of_another_class():
    for name, sentence in ALL:
        for other in CLASSES:
            if other != name:
                for part in other.split(" or "):
                    subject = rf"(an?|the|two|some) ([a-z]+ )?{part}s?\b"
                    assert not re.match(subject, sentence), (name, sentence)


def test_the_name_of_another_class_is_rare_anywhere():
    naming = [
        (name, sentence)
        for name, sentence in ALL
        for other in CLASSES
        if other != name and re.search(rf"\b({other.replace(' or ', '|')})s?\b", sentence.lower())
    ]
    assert len(naming) <= 0.02 * len(ALL), naming


def test_the_file_is_what_a_user_would_write(tmp_path):
    content = (resources.files("promptboost.pool") / "data" / "emoji.json").read_bytes()
    mine = tmp_path / "mine.json"
    mine.write_bytes(content)
    assert read_sentences(mine) == SENTENCES == json.loads(content)


def test_the_pool_of_the_demo():
    pool = build_pool(CLASSES, descriptions=SENTENCES, source="descriptions:emoji.json")
    assert pool.missing == pool.unused == ()
    for name in CLASSES:
        # Nothing is lost to deduplication: every sentence adds something to the templates.
        assert len(pool.prompts(name)) == len(pool.templates) + len(SENTENCES[name])

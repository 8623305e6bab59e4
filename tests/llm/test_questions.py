import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import PoolError, SettingError
from promptboost.llm.questions import contrast_questions, questions_for

KINDS = ["cupl", "dclip", "contrast"]
NAMES = ["owl", "Boston_terrier", "bat", "Norfolk terrier", "apple"]


@pytest.mark.parametrize("kind", KINDS)
@given(per_class=st.integers(1, 300))
def test_enough_is_asked_for_and_no_question_twice(kind, per_class):
    questions = questions_for(NAMES, kind, per_class)
    assert len({question.text for question in questions}) == len(questions)
    for name in NAMES:
        own = [question for question in questions if question.class_name == name]
        assert sum(question.count for question in own) >= per_class
        assert all(f"{question.count} different" in question.text for question in own)
        assert all(name.replace("_", " ") in question.text for question in own)
        assert sum(question.count for question in own) < per_class + len(own)


def test_articles_and_underscores_are_written_as_people_do():
    texts = [question.text for question in questions_for(NAMES, "cupl", 1)]
    assert texts[0].startswith("What does an owl look like?")
    assert texts[1].startswith("What does a Boston terrier look like?")
    one, other = contrast_questions("apple", "old_owl", 3)
    assert "does an apple look different from an old owl?" in one.text
    assert "does an old owl look different from an apple?" in other.text
    assert (one.class_name, one.rival, other.rival) == ("apple", "old_owl", "apple")


def test_rivals_with_shared_words_come_first():
    found = {q.class_name: q.rival for q in questions_for(NAMES, "contrast", 5)}
    assert found["Boston_terrier"] == "Norfolk terrier"
    assert found["Norfolk terrier"] == "Boston_terrier"
    assert found["owl"] == "Boston_terrier"  # the next in the list


def test_what_cannot_be_asked():
    with pytest.raises(PoolError, match="two classes"):
        questions_for(["owl"], "contrast", 5)
    with pytest.raises(SettingError, match="per_class"):
        questions_for(NAMES, "cupl", 0)
    with pytest.raises(SettingError, match="cupl"):
        questions_for(NAMES, "other", 5)

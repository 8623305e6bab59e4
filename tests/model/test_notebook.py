"""What notebooks show of a text: short, escaped, with its sentences."""

from html.parser import HTMLParser

from promptboost import PromptClassifier, PromptEnsemble
from promptboost.model import Round
from promptboost.model.notebook import CLASSES, SENTENCES


class _Reader(HTMLParser):
    """Collects tags, and what people see."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def read(html):
    reader = _Reader()
    reader.feed(html)
    return reader


def ensemble(classes=3, sentences=2):
    banks = {
        f"class {c}": {f"sentence {s} of {c}": 1 for s in range(sentences)} for c in range(classes)
    }
    return PromptEnsemble(tuple(banks), (Round("{}", banks, 0.0, 0.1),), encoder_id="fake:8-0")


def test_it_is_short():
    text = ensemble(500, 20)
    assert repr(text) == (
        "PromptEnsemble(500 classes, 1 round, 10,000 sentences, encoder='fake:8-0')"
    )
    html = text._repr_html_()
    assert len(html) < 60_000
    page = read(html)
    assert page.tags.count("details") == CLASSES
    assert f"and {500 - CLASSES} more classes" in "".join(page.text)
    assert f"{20 - SENTENCES} others" in "".join(page.text)


def test_parts_are_those_of_the_score():
    words = "".join(read(ensemble(3, 4)._repr_html_()).text)
    assert words.count("25.0%") == 12


def test_strangers_words_stay_words():
    evil = "<script>alert(1)</script>"
    banks = {evil: {"<img src=x onerror=alert(1)>": 1}, "b": {"'\"&": 1}}
    text = PromptEnsemble((evil, "b"), (Round(evil, banks, 0.0, 0.1),), encoder_id=evil)
    for thing in (text, PromptClassifier(text)):
        page = read(thing._repr_html_())
        assert not {"script", "img"} & set(page.tags)
        assert evil in "".join(page.text)


def test_the_card_of_a_classifier_names_its_encoder_and_loads_none():
    classifier = PromptClassifier(ensemble(), "there-is/none")
    assert "there-is/none" in classifier._repr_html_()
    assert repr(classifier).endswith("encoder='there-is/none')")

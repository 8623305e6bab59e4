"""ProAPO's units: what they say, and that only those looked at are embedded."""

from collections.abc import Sequence

import numpy as np
import pytest

from promptboost.encoders.base import UnitRows
from promptboost.encoders.fake import FakeEncoder
from promptboost.methods.proapo.class_search import ClassUnits, Unit, units_of

TEMPLATES = ("a photo of a {}.", "the {}.")


class CountingEncoder(FakeEncoder):
    """Remembers what it was asked to embed."""

    def __init__(self) -> None:
        super().__init__(dim=8)
        self.asked: list[str] = []

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        self.asked += texts
        return super().encode_texts(texts)


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        (Unit("Barn_Owl"), "a photo of a barn owl."),
        (Unit("owl", "Owls have large eyes."), "a photo of an owl. owls have large eyes."),
        (Unit("owl", "owl, which has eyes."), "a photo of an owl, which has eyes."),
        (Unit("owl", "Owl, a bird."), "a photo of an owl. owl, a bird."),
    ],
)
def test_what_a_unit_says_behind_a_template(unit: Unit, text: str) -> None:
    assert unit.text(TEMPLATES[0]) == text


def test_a_synonym_stands_for_the_class_in_its_sentences() -> None:
    units = units_of(
        "pit_bull", ["pit bull", r"ap\bt"], ["A Pit Bull is strong.", "pit bulls bark"]
    )
    assert units[0] == Unit("pit bull")
    assert [u.sentence for u in units if u.label == r"ap\bt"] == [
        None,
        r"A ap\bt is strong.",
        "pit bulls bark",
    ]
    assert len(units) == 6


def test_only_what_is_looked_at_is_embedded_and_once() -> None:
    encoder = CountingEncoder()
    units = ClassUnits([units_of("owl", [], ["eyes", "beak"])], TEMPLATES, encoder)
    rows = units.rows(0, [1])
    assert encoder.asked == ["a photo of an owl. eyes", "the owl. eyes"]
    np.testing.assert_allclose(rows[0], encoder.encode_texts(encoder.asked).mean(axis=0), rtol=1e-6)
    encoder.asked.clear()
    units.embed([(0, 1), (0, 2), (0, 2)])
    assert encoder.asked == ["a photo of an owl. beak", "the owl. beak"]


def test_previews_are_the_sentences_as_they_stand() -> None:
    encoder = CountingEncoder()
    units = ClassUnits([units_of("owl", ["hooter"], ["Eyes."])], TEMPLATES, encoder)
    previews = units.previews(0)
    assert encoder.asked[-2:] == ["Eyes.", "Eyes."]
    np.testing.assert_allclose(previews[1], encoder.encode_texts(["Eyes."])[0])
    named = encoder.encode_texts(["a photo of a hooter.", "the hooter."]).mean(axis=0)
    np.testing.assert_allclose(previews[2], named, rtol=1e-6)


def test_a_bank_is_all_templates_with_all_units() -> None:
    units = ClassUnits([units_of("owl", [], ["Eyes.", "eyes."])], TEMPLATES, FakeEncoder(dim=8))
    assert units.bank(0, {0, 1}) == {
        "a photo of an owl.": 1.0,
        "the owl.": 1.0,
        "a photo of an owl. eyes.": 1.0,
        "the owl. eyes.": 1.0,
    }
    # Units that say the same in small letters count as often as they are there.
    assert units.bank(0, {1, 2}) == {"a photo of an owl. eyes.": 2.0, "the owl. eyes.": 2.0}

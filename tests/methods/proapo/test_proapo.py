"""ProAPO as a whole, on an encoder without weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptboost.encoders.base import UnitRows
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import PoolError, SettingError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import RowImages
from promptboost.methods.fitted import TextClassifier
from promptboost.methods.proapo import ProAPO
from promptboost.methods.proapo.evolution import Candidate, Evolution, Fitness
from promptboost.pool import PromptPool, build_pool

ENCODER = FakeEncoder(dim=24)
# Names say nothing about the colors; some of the sentences do.
COLOURS = {"fire": "red", "ice": "blue", "leaf": "green", "sun": "yellow", "coal": "black"}
NAMES = tuple(COLOURS)
TEMPLATES = ["a photo of a {}.", "a {}.", "the {}.", "an emoji of a {}.", "an image of a {}."]
QUICK = ProAPO(epochs=3, group_epochs=3)


def shots(encoder: FakeEncoder = ENCODER) -> FewShotSet:
    seen = [f"{shade} {color}" for color in COLOURS.values() for shade in ("", "dark", "pale")]
    rows = encoder.encode_texts(seen)[:, None]
    labels = np.repeat(np.arange(len(NAMES)), 3)
    return FewShotSet(RowImages({encoder.id: rows}), labels, NAMES)


def pool_of(source: str = "CuPL", **extra: dict[str, list[str]]) -> PromptPool:
    misleading = dict(zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True))
    said = {
        name: [
            f"It is {color} {color}.",
            "Everybody has seen one.",
            f"Not {COLOURS[misleading[name]]}.",
        ]
        for name, color in COLOURS.items()
    }
    return build_pool(NAMES, templates=TEMPLATES, descriptions={source: said, **extra})


def accuracy(fitted: TextClassifier, given: FewShotSet) -> float:
    return float((fitted.predict(given.images) == given.labels).mean())


def test_it_learns_what_to_say_of_each_class() -> None:
    given = shots()
    templates_only = replace(QUICK, loops=0).fit(given, pool_of(), ENCODER)
    fitted = replace(QUICK, importance=False).fit(given, pool_of(), ENCODER)
    assert accuracy(templates_only, given) < accuracy(fitted, given)
    assert accuracy(fitted, given) >= 0.8
    assert fitted.details["training_fitness"] > fitted.details["template_fitness"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"importance": False},
        {"epochs": 0, "group_epochs": 0},
        {"groups": 4, "loops": 1},
    ],
)
def test_what_it_reports_is_what_its_text_does(settings: dict[str, object]) -> None:
    given = shots()
    fitted = replace(QUICK, **settings).fit(given, pool_of(), ENCODER)
    details = fitted.details
    assert details["training_accuracy"] == pytest.approx(accuracy(fitted, given))
    logits = fitted.logits(given.images).astype(np.float64)
    true = logits[np.arange(len(logits)), given.labels]
    loss = (np.log(np.exp(logits).sum(axis=1)) - true).mean()
    # With five classes every image's class is among its best five.
    by_hand = 10 * details["training_accuracy"] + 10 - 10 * loss
    assert details["training_fitness"] == pytest.approx(by_hand, abs=1e-3)
    assert details["training_fitness"] >= details["template_fitness"] - 1e-4
    assert details["templates"]


def test_a_bank_is_templates_times_units() -> None:
    fitted = QUICK.fit(shots(), pool_of(), ENCODER)
    templates = fitted.details["templates"]
    for name, bank in zip(NAMES, fitted.banks, strict=True):
        assert sum(bank.values()) % len(templates) == 0
        assert all(f" {name}" in text for text in bank)
        assert all(text == text.lower() for text in bank)


def test_only_groups_are_edited() -> None:
    fitted = replace(QUICK, loops=1, groups=1).fit(shots(), pool_of(), ENCODER)
    (group,) = fitted.details["groups"]
    n = len(fitted.details["templates"])
    for name, bank in zip(NAMES, fitted.banks, strict=True):
        if name not in group:
            assert len(bank) == n, "a class outside the group is its name in the templates"


def test_groups_have_half_as_many_mutations(monkeypatch: pytest.MonkeyPatch) -> None:
    generations: list[int] = []
    original = Evolution._generation

    def counted(self: Evolution, *arguments: Any) -> list[Candidate]:
        generations.append(len(children := original(self, *arguments)))
        return children

    monkeypatch.setattr(Evolution, "_generation", counted)
    alone = ProAPO(epochs=0, group_epochs=1, loops=1, groups=1, importance=False)
    alone = replace(alone, adds=0, removes=0, replaces=0, crossovers=0)
    for mutations in (0, 6):
        replace(alone, mutations=mutations).fit(shots(), pool_of(), ENCODER)
    assert generations == [0, 3]


def test_the_same_seed_gives_the_same_text_and_another_may_not() -> None:
    given, pool = shots(), pool_of()
    one = ProAPO(epochs=2, seed=3).fit(given, pool, ENCODER)
    again = ProAPO(epochs=2, seed=3).fit(given, pool, ENCODER)
    assert one.banks == again.banks
    assert one.details == again.details
    drawn = ProAPO(epochs=0, top=1, loops=0)
    others = [replace(drawn, seed=s).fit(given, pool, ENCODER) for s in range(4)]
    assert len({tuple(fitted.details["templates"]) for fitted in others}) > 1


def test_crops_do_not_matter() -> None:
    given = shots()
    fitted = QUICK.fit(given, pool_of(), ENCODER)
    # Crops that look like other classes: the search sees the images themselves only.
    rows = given.images.views(ENCODER)
    crops = np.concatenate([rows, np.roll(rows, 3, axis=0)], axis=1)
    with_crops = FewShotSet(RowImages({ENCODER.id: crops}), given.labels, NAMES)
    assert QUICK.fit(with_crops, pool_of(), ENCODER).banks == fitted.banks


def test_the_source_is_cupl_and_else_everything() -> None:
    given = shots()
    both = pool_of("proapo:CuPL_full", mine={"fire": ["It burns."]})
    assert QUICK.fit(given, both, ENCODER).details["sources"] == ["proapo:CuPL_full"]
    assert QUICK.fit(given, pool_of("mine"), ENCODER).details["sources"] == ["mine"]
    templates_only = build_pool(NAMES, templates=TEMPLATES)
    fitted = QUICK.fit(given, templates_only, ENCODER)
    assert fitted.details["sources"] == []
    assert fitted.details["groups"] == []


def test_synonyms_in_the_pool_are_names_not_sentences() -> None:
    synonyms = {name: [f"{color} {color} thing"] for name, color in COLOURS.items()}
    pool = pool_of("mine", synonyms=synonyms)
    given = shots()
    fitted = replace(QUICK, importance=False, groups=4).fit(given, pool, ENCODER)
    assert fitted.details["sources"] == ["mine"]
    said = [text for bank in fitted.banks for text in bank]
    assert any("red red thing" in text for text in said)


def test_fewer_texts_are_embedded_than_there_are() -> None:
    class Counting(FakeEncoder):
        def __init__(self) -> None:
            super().__init__(dim=24)
            self.behind_templates: set[str] = set()

        def encode_texts(self, texts: Sequence[str]) -> UnitRows:
            self.behind_templates.update(t for t in texts if "sentence" in t and ". " in t)
            return super().encode_texts(texts)

    said = {
        name: [f"{color} sentence number{i}." for i in range(40)] for name, color in COLOURS.items()
    }
    pool = build_pool(NAMES, templates=TEMPLATES, descriptions={"CuPL": said})
    encoder = Counting()
    method = ProAPO(epochs=2, group_epochs=1, loops=1, groups=1)
    fitted = method.fit(shots(encoder), pool, encoder)
    n = len(fitted.details["templates"])
    assert len(encoder.behind_templates) <= 60 * n < 5 * 40 * n


def test_it_is_saved_and_carried_over(tmp_path: Path) -> None:
    given = shots()
    fitted = replace(QUICK, importance=False).fit(given, pool_of(), ENCODER)
    save_fitted(fitted, tmp_path)
    again = load_fitted(tmp_path, ENCODER)
    assert isinstance(again, TextClassifier)
    assert again.details == fitted.details
    np.testing.assert_array_equal(again.logits(given.images), fitted.logits(given.images))
    other = FakeEncoder(dim=24, seed=3)
    assert accuracy(fitted.transfer(other), shots(other)) >= 0.8


def test_the_pool_is_read_by_name_not_by_place() -> None:
    said = {"fire": ["It is red."], "ice": ["It is blue."]}
    rows = ENCODER.encode_texts(["red", "blue"])[:, None]
    given = FewShotSet(RowImages({ENCODER.id: rows}), np.array([0, 1]), ("fire", "ice"))
    banks = [
        QUICK.fit(given, build_pool(names, templates=TEMPLATES, descriptions=said), ENCODER).banks
        for names in (["fire", "ice"], ["ice", "fire"])
    ]
    assert banks[0] == banks[1]


def test_what_cannot_be_done_is_refused_before_any_work() -> None:
    said = {name: ["It is there."] for name in NAMES}
    without = build_pool(NAMES, templates=[], descriptions={"CuPL": said})
    with pytest.raises(PoolError, match="the pool has none; build one with templates"):
        QUICK.check(shots(), without, ENCODER)
    with pytest.raises(PoolError, match="no sentences from 'awt'; it has CuPL"):
        make_method("proapo?sources=awt").check(shots(), pool_of(), ENCODER)


@pytest.mark.parametrize("setting", ["top=0", "adds=-1", "loops=-1", "seed=-1"])
def test_settings_that_mean_nothing_are_refused(setting: str) -> None:
    with pytest.raises(SettingError, match=f"{setting.split('=')[0]} is .*, but must be"):
        make_method(f"proapo?{setting}")


@pytest.mark.parametrize(
    "settings",
    [
        {"weighted": True, "most_templates": 3},
        {"type_words": "thing+color", "redundancy": 0.5},
        {"sampled_start": True, "group_top1_weight": 0.0, "group_top5_weight": 0.5},
    ],
)
def test_the_authors_settings_are_as_good_on_an_easy_task(settings):
    method = replace(QUICK, **settings)
    fitted = method.fit(shots(), pool_of(), ENCODER)
    plain = QUICK.fit(shots(), pool_of(), ENCODER)
    assert fitted.details["training_accuracy"] >= plain.details["training_accuracy"] - 0.2
    searched = fitted.details["templates_in_library"]
    if "most_templates" in settings:
        assert searched == 3
    if "type_words" in settings:
        assert searched > len(TEMPLATES)
    again = method.fit(shots(), pool_of(), ENCODER)
    assert again.words() == fitted.words()


def test_weighted_draws_prefer_good_elements_and_remove_bad_ones():
    weights = np.array([0.0, 0.0, 0.0, 50.0])
    evolution = Evolution(ProAPO(), np.random.default_rng(0), [0] * 4, weights=weights)
    drawn = [next(iter(evolution.draw(range(4)))) for _ in range(200)]
    removed = [next(iter(evolution.draw(range(4), worst=True))) for _ in range(200)]
    assert drawn.count(3) > 190
    assert removed.count(3) < 10


def test_redundancy_raises_the_fitness_of_similar_classes():
    rows = ENCODER.encode_texts(["red", "blue"])
    images, labels = rows, np.array([0, 1])
    known = {"top1_weight": 0.1, "top5_weight": 0.1}
    plain = Fitness(images, labels, 10.0, **known).of(rows).fitness[0]
    added = Fitness(images, labels, 10.0, **known, redundancy=2.0).of(rows).fitness[0]
    assert added - plain == pytest.approx(2 * abs(float(rows[0] @ rows[1])), abs=1e-5)

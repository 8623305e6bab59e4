"""Zero-shot: which templates are filled."""

import dataclasses

import pytest

from promptboost.errors import SettingError
from promptboost.methods import make_method
from promptboost.pool import build_pool
from tests.methods.small_task import ENCODER, NAMES, POOL, SAID, SHOTS


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("zero-shot", ["a photo of ice."]),
        ("template-mean", POOL.template_texts()[1]),
        ("zero-shot-dataset", ["ice texture."]),
        ("zero-shot?template=the {}", ["the ice"]),
    ],
)
def test_which_templates_are_filled(name: str, texts: list[str]) -> None:
    shots = dataclasses.replace(SHOTS, template="{} texture.")
    fitted = make_method(name).fit(shots, POOL, ENCODER)
    assert fitted.words()[1] == dict.fromkeys(texts, 1.0)


def test_what_there_is_no_template_for_is_refused() -> None:
    bare = build_pool(NAMES, templates=[], descriptions=SAID)
    with pytest.raises(SettingError, match="the pool has none"):
        make_method("template-mean").check(SHOTS, bare, ENCODER)
    with pytest.raises(SettingError, match=r"zero-shot\?template=YOUR"):
        make_method("zero-shot-dataset").check(SHOTS, POOL, ENCODER)

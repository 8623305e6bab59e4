"""Names of methods and their settings: made, spelled, refused."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import SettingError
from promptboost.methods import Method, make_method
from promptboost.methods.base import spelled
from promptboost.methods.registry import METHODS

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@given(TEXTS, TEXTS)
def test_a_text_setting_can_be_spelled_and_made_again(before: str, after: str) -> None:
    template = f"{before}{{}}{after}"
    if template.count("{}") == 1:
        method = make_method("zero-shot")
        method = dataclasses.replace(method, template=template)
        assert make_method(spelled(method)) == method


@pytest.mark.parametrize("name", ["a {} & b.", "100% {}", "{} + 1 = 2", "%26 {}", "?{}#"])
def test_characters_with_a_meaning_survive(name: str) -> None:
    method = dataclasses.replace(make_method("zero-shot"), template=name)
    assert make_method(spelled(method)) == method


@given(
    st.sampled_from(["gradient", "greedy"]),
    st.integers(1, 99),
    st.none() | st.integers(0, 9),
    st.none() | st.floats(0.1, 1e6),
    st.floats(1e-9, 1e9),
    TEXTS,
)
def test_settings_of_every_type_can_be_spelled_and_read(
    composer: str,
    rounds: int,
    views: int | None,
    scale: float | None,
    tau: float,
    sources: str,
) -> None:
    method: Method = dataclasses.replace(
        make_method("tpb"),
        composer=composer,
        rounds=rounds,
        views_per_round=views,
        logit_scale=scale if composer == "gradient" else None,  # the other has none
        temperature=tau,
        sources=sources,
    )
    assert make_method(spelled(method)) == method


@pytest.mark.parametrize("name", list(METHODS))
def test_every_name_makes_a_method_that_spells_itself(name: str) -> None:
    method = make_method(name)
    assert make_method(spelled(method)) == method
    assert METHODS[method.name].factory == METHODS[name].factory
    assert name == method.name or METHODS[name].preset


def test_only_what_is_not_the_default_is_spelled() -> None:
    assert spelled(make_method("cupl?templates=false")) == "cupl"
    assert spelled(make_method("cupl+templates")) == "cupl?templates=true"
    assert spelled(make_method("cupl+templates?templates=FALSE")) == "cupl"
    greedy = "promptboost?composer=greedy&rounds=50&views_per_round=4&residual=false"
    assert spelled(make_method("tpb")) == greedy
    assert (
        spelled(make_method("tpb?views_per_round=none&rounds=1&residual=on"))
        == "promptboost?composer=greedy"
    )


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("zero-shoot", "there is no method 'zero-shoot'; did you mean zero-shot"),
        ("xyzzy", "there are zero-shot, "),
        ("eft", "EFT transfers another method"),
        ("cupl?template=true", "cupl has no setting 'template'; it has templates, sources"),
        ("pool-mean?a=1", "it has none"),
        ("cupl?templates=yes", "templates is 'yes', but must be true or false"),
        ("tpb?rounds=2.5", "rounds is '2.5', but must be a whole number"),
        ("tpb?rounds=", "rounds is '', but must be a whole number"),
        ("tpb?rounds=none", "rounds is 'none', but must be a whole number"),
        ("tpb?temperature=warm", "temperature is 'warm', but must be a number"),
        ("tpb?temperature=nan", "temperature is 'nan', but must be a number"),
        ("tpb?rounds=1&rounds=2", "rounds is given twice"),
        ("tpb?composer=random", "must be 'gradient' or 'greedy'"),
        ("zero-shot?template=a photo", "must have one {}"),
        ("zero-shot?template", "must have one {}"),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_can(spelling: str, message: str) -> None:
    with pytest.raises(SettingError, match=message.replace("{}", r"\{\}")):
        make_method(spelling)

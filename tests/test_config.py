import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.config import PRESETS, FitConfig, read_config
from promptboost.errors import FileFormatError, SettingError
from promptboost.runs.folder import write_toml

composers = st.fixed_dictionaries(
    {"composer": st.just("greedy"), "max_copies": st.none() | st.integers(1, 99)}
) | st.fixed_dictionaries(
    {"composer": st.just("gradient"), "logit_scale": st.none() | st.floats(1e-3, 1e6)}
)
settings = st.builds(
    lambda composer, **others: FitConfig(**composer, **others),
    composer=composers,
    encoder=st.text(min_size=1),
    shots=st.none() | st.integers(1, 10**6),
    seed=st.integers(0, 2**40),
    rounds=st.integers(1, 500),
    views=st.integers(4, 40),
    views_per_round=st.integers(0, 4),
    view_scale=st.floats(1e-3, 1),
    temperature=st.floats(1e-6, 1e6),
    patience=st.none() | st.integers(1, 99),
    prompts=st.none() | st.text(),
    templates=st.sampled_from(["own", "clip"]),
    concatenate=st.sampled_from(["none", "one", "all"]),
    on_bad=st.sampled_from(["skip", "stop"]),
)


@given(settings)
def test_settings_survive_their_file(chosen):
    text = write_toml({"fit": chosen.to_table()})
    assert FitConfig.from_table(tomllib.loads(text)["fit"]) == chosen


@given(
    st.dictionaries(
        st.text(min_size=1), st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
    )
)
def test_any_flat_table_is_read_back(table):
    assert tomllib.loads(write_toml({"a b": table})) == {"a b": table}


def test_names_that_are_not_utf8_can_be_written():
    text = write_toml({"data": {"source": "caf\udce9", "lists": ["a", "\x7f\n"]}})
    assert tomllib.loads(text)["data"] == {"source": "caf\\udce9", "lists": ["a", "\x7f\n"]}


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"rounds": 0}, "rounds is 0, but must be 1 or more"),
        ({"shots": "many"}, 'must be a whole number, or "all"'),
        ({"seed": 1.5}, "seed is 1.5, but must be a whole number"),
        ({"rounds": True}, "must be a whole number"),
        ({"temperature": 0}, "temperature is 0, but must be a number above 0"),
        ({"temperature": "hot"}, "must be a number above 0"),
        ({"temperature": float("nan")}, "must be a number above 0"),
        ({"view_scale": 1.5}, "at most 1"),
        ({"templates": "mine"}, "'own' or 'clip'"),
        ({"prompts": 3}, "prompts is 3, but must be a text"),
        ({"encoder": None}, "encoder is None, but must be a text"),
        ({"views": 2, "views_per_round": 3}, "only 2 views"),
        ({"composer": "magic"}, "composer is 'magic', but must be 'gradient' or 'greedy'"),
        ({"logit_scale": 0}, "logit_scale is 0, but must be a number above 0"),
        ({"logit_scale": float("inf")}, "must be a number above 0"),
        ({"max_copies": 3}, "only the greedy composer has it, and the composer is gradient"),
        (
            {"composer": "greedy", "logit_scale": 3},
            "leave logit_scale out, or ask for the composer gradient (--composer gradient;",
        ),
        ({"colour": "red"}, "there is no setting 'colour'; there are encoder,"),
    ],
)
def test_bad_settings_are_named(changes, part):
    with pytest.raises(SettingError, match=None) as caught:
        FitConfig().merged(changes)
    assert part in str(caught.value)


def test_shots_may_be_all():
    assert FitConfig().merged({"shots": "all"}).shots is None
    assert FitConfig(shots=None).to_table()["shots"] == "all"


def test_a_run_file_is_a_config(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(write_toml({"fit": FitConfig(rounds=7).to_table(), "data": {"source": "x"}}))
    assert FitConfig().merged(read_config(file)).rounds == 7


def test_a_run_file_from_before_the_gradient_composer_is_greedy(tmp_path):
    file = tmp_path / "run.toml"
    old = {"rounds": 50, "views_per_round": 4, "max_copies": 3}
    file.write_text(write_toml({"fit": old, "versions": {"promptboost": "0.1.0"}}))
    assert FitConfig().merged(read_config(file)).composer == "greedy"
    assert FitConfig.from_table(old).composer == "greedy"
    file.write_text(write_toml({"fit": {"rounds": 2}}))
    assert FitConfig().merged(read_config(file)).composer == "gradient"


def test_presets_are_about_the_same_settings():
    default, paper = PRESETS["default"], PRESETS["paper"]
    assert set(default) == set(paper)
    assert FitConfig().merged(default) == FitConfig()
    assert FitConfig().merged(paper).merged(default) == FitConfig()
    assert dict(paper) == {
        "composer": "greedy",
        "rounds": 50,
        "views_per_round": 4,
        "temperature": 1.0,
    }


@pytest.mark.parametrize(
    ("text", "error", "part"),
    [
        ("rounds = ", FileFormatError, "is not TOML"),
        ("fit = 3", FileFormatError, "must be a table"),
        ("round = 3", SettingError, "mine.toml: there is no setting 'round'"),
        ("\udcff", FileFormatError, "is not TOML"),
    ],
)
def test_bad_config_files_are_named(tmp_path, text, error, part):
    file = tmp_path / "mine.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(error) as caught:
        read_config(file)
    assert part in str(caught.value)


def test_a_missing_config_file_is_named(tmp_path):
    with pytest.raises(SettingError, match="cannot read the settings"):
        read_config(tmp_path / "none.toml")

import dataclasses
import inspect
import re
import tomllib
from typing import get_type_hints

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.boosting import BoostSettings, GradientSettings
from promptboost.boosting.grid import MAX_BANK_SIZE
from promptboost.cli.fit import fit as fit_command
from promptboost.config import PRESETS, BoostConfig, FitConfig, read_config, settings_of
from promptboost.errors import FileFormatError, SettingError
from promptboost.estimator import PromptBoostClassifier
from promptboost.methods import make_method
from promptboost.methods.promptboost import Boosting
from promptboost.run.run_folder import write_toml
from promptboost.training.trainer import boost_settings

composers = st.fixed_dictionaries(
    {
        "composer": st.just("greedy"),
        "max_copies": st.none() | st.integers(1, 99),
        "penalty": st.booleans(),
    }
) | st.fixed_dictionaries(
    {
        "composer": st.just("gradient"),
        "logit_scale": st.none() | st.floats(1e-3, 1e6),
        "copies": st.integers(1, 2**15),
        "sweeps": st.integers(1, 99),
        "spread": st.floats(0, 1e6),
        "caution": st.floats(0, 9),
        "tolerance": st.floats(0, 1),
    }
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
        ({"spread": -1}, "spread is -1, but must be a number, 0 or more"),
        ({"copies": 2**15 + 1}, "copies is 32769, but must be at most 32768"),
        ({"sweeps": 0}, "sweeps is 0, but must be 1 or more"),
        ({"penalty": 1}, "penalty is 1, but must be True or False"),
        ({"composer": "real"}, "composer is 'real', but must be 'gradient' or 'greedy'"),
        ({"penalty": False}, "penalty is False, but only the greedy composer has it"),
        ({"composer": "greedy", "caution": 0.5}, "only the gradient composer has it"),
        ({"color": "red"}, "there is no setting 'color'; there are encoder,"),
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


def test_presets_are_about_the_same_settings():
    default, paper = PRESETS["default"], PRESETS["paper"]
    assert set(default) == set(paper)
    assert FitConfig().merged(default) == FitConfig()
    assert FitConfig().merged(paper).merged(default) == FitConfig()
    assert dict(paper) == {
        "templates": "clip",
        "concatenate": "one",
        "composer": "greedy",
        "rounds": 50,
        "views_per_round": 4,
        "temperature": 1.0,
        "residual": False,
    }


@pytest.mark.parametrize(
    ("text", "error", "part"),
    [
        ("rounds = ", FileFormatError, "is not TOML"),
        ("fit = 3", FileFormatError, "must be a table"),
        ("round = 3", SettingError, "mine.toml: there is no setting 'round'"),
        ("shots = 3\n[fit]\nrounds = 2", SettingError, "mine.toml: shots is above [fit]"),
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


# --- the four views ------------------------------------------------------------------------------

SETTINGS = settings_of(FitConfig)


def test_the_command_line_has_every_setting():
    options = {option.name: option for option in fit_command.params if option.name in SETTINGS}
    assert list(options) == list(SETTINGS)
    untyped = fit_command.make_context("fit", ["images", "-o", "run"]).params
    kinds = {int: click.INT, float: click.FLOAT, bool: click.BOOL, str: click.STRING}
    for name, setting in SETTINGS.items():
        option = options[name]
        assert f"--{name.replace('_', '-')}" in option.opts
        assert untyped[name] is None  # and so left to the file, the run or the default
        assert option.help.startswith(setting.help)
        assert f"Default: {setting.default_text}" in option.help
        if setting.choices:
            assert tuple(option.type.choices) == setting.choices
        elif setting.none == "all":
            assert option.type.name == "N|all"
        else:
            assert type(option.type) is type(kinds[setting.kind]) or setting.file


def test_a_file_has_every_setting(tmp_path):
    other = {int: 3, float: 0.25, bool: False}
    for name, setting in SETTINGS.items():
        value = setting.choices[-1] if setting.choices else other.get(setting.kind, "x")
        composer = {"composer": setting.only_for} if setting.only_for else {}
        file = tmp_path / f"{name}.toml"
        file.write_text(write_toml({"fit": {**composer, name: value}}))
        config = FitConfig().merged(read_config(file))
        assert getattr(config, name) == value != setting.default
        assert FitConfig.from_table(config.to_table()) == config


def test_the_estimator_has_the_settings_under_the_names_of_scikit_learn():
    called = {name: name for name in ("composer", "residual")}
    called |= {"rounds": "n_rounds", "views": "n_views"}
    parameters = inspect.signature(PromptBoostClassifier).parameters
    hints = get_type_hints(PromptBoostClassifier.__init__)
    wanted = get_type_hints(FitConfig)
    for name, ours in called.items():
        assert parameters[ours].default == SETTINGS[name].default, name
        assert hints[ours] == wanted[name], name
        first_words = " ".join(SETTINGS[name].help.split()[:6])
        assert first_words in PromptBoostClassifier.__doc__
    # None draws a seed, as everywhere in scikit-learn; labels and images are given to fit; encoder,
    # pool and templates take objects too; and an image that cannot be used is an error.
    # Which encoders predict is no setting of a fit.
    others = {"encoder", "average", "pool", "templates", "class_names", "cache", "random_state"}
    assert set(parameters) == {*called.values(), *others, "settings"}
    shared = {*settings_of(BoostConfig), "views", "view_scale", "concatenate"}
    assert set(SETTINGS) - shared == {"encoder", "prompts", "templates", "shots", "on_bad"}
    X, y = np.eye(4), ["a", "a", "b", "b"]
    for name in shared - {*called, "seed"}:
        assert re.search(rf"\b{name}\b", PromptBoostClassifier.__doc__)
        composer = SETTINGS[name].only_for or "gradient"
        model = PromptBoostClassifier(composer=composer, settings={name: object()})
        with pytest.raises(SettingError, match=f"{name} is <object"):
            model.fit(X, y)


def test_the_method_has_the_settings_of_boosting():
    fields = {item.name: item for item in dataclasses.fields(Boosting)}
    assert list(fields) == [*settings_of(BoostConfig), "sources", "also"]
    hints, wanted = get_type_hints(Boosting), get_type_hints(FitConfig)
    for name, setting in settings_of(BoostConfig).items():
        assert fields[name].default == setting.default == SETTINGS[name].default
        assert hints[name] == wanted[name]
    assert make_method("promptboost?spread=1.5&copies=8").spread == 1.5


def test_boosting_is_asked_what_the_settings_say():
    fields = {
        item.name for kind in (BoostSettings, GradientSettings) for item in dataclasses.fields(kind)
    }
    assert fields - {"gradient"} == set(settings_of(BoostConfig)) - {"composer", "residual"}
    assert boost_settings(FitConfig(), 8).gradient == GradientSettings()
    assert SETTINGS["copies"].most == MAX_BANK_SIZE
    config = FitConfig(
        spread=1, caution=0, copies=9, sweeps=3, tolerance=0.5, logit_scale=7, seed=4
    )
    asked = boost_settings(config, 6)
    assert asked.gradient == GradientSettings(7.0, 3, 9, 1.0, 0.0, 0.5)
    assert (asked.seed, asked.views_per_round) == (4, 6)
    paper = FitConfig().merged({**PRESETS["paper"], "penalty": False})
    greedy = BoostSettings(penalty=False)
    assert boost_settings(paper, 20) == greedy


def test_the_papers_preset_is_its_setting(tmp_path):
    from promptboost.data.source import DataSource
    from promptboost.pool import build_pool, save_pool
    from promptboost.run.fit import preset_settings

    def made(source="photos", **given):
        settings = preset_settings("paper", DataSource.parse(source), given)
        FitConfig().merged(settings)
        return settings

    sentences = str(tmp_path / "sentences.json")
    usual = made(prompts=sentences)
    assert (usual["templates"], usual["concatenate"]) == ("clip", "one")
    assert (usual["rounds"], usual["views_per_round"], usual["views"]) == (50, 4, 200)
    assert (usual["temperature"], usual["residual"]) == (1.0, False)
    large = made("imagenet:data", prompts=sentences)
    assert (large["rounds"], large["views"]) == (30, 120)
    assert made("imagenet:data", rounds=5)["views"] == 20
    assert made(views=8)["views"] == 8
    assert made(views_per_round=0)["views"] == 0
    # Without sentences there is nothing to concatenate, and a saved pool has its own templates.
    assert made()["concatenate"] == "none"
    saved = tmp_path / "pool.jsonl"
    save_pool(build_pool(["owl"], templates=["a {}"]), saved)
    assert not {"templates", "concatenate"} & set(made(prompts=str(saved)))
    described = preset_settings("paper", DataSource.parse("photos"), {}, describe=True)
    assert described["concatenate"] == "one"
    assert preset_settings("default", DataSource.parse("photos"), {"rounds": 2})["rounds"] == 2

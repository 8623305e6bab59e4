import json
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import FileFormatError, SettingError
from promptboost.model import PromptEnsemble
from promptboost.model.ensemble import EncoderRecord
from promptboost.model.schema import json_schema
from tests.model.ensembles import PATIENT, TEXT, ensembles, pets
from tests.model.test_ensemble_file import BEYOND_STRUCTURE, STRUCTURE

VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(json_schema())


@given(ensembles(prompts=TEXT))
@PATIENT
def test_accepts_what_we_write(ensemble):
    VALIDATOR.validate(json.loads(ensemble.to_json(sample_weights=True)))


@pytest.mark.parametrize("change", [change for change, _ in STRUCTURE])
def test_rejects_what_the_reader_rejects_for_its_structure(change):
    record = json.loads(pets().to_json(sample_weights=True))
    change(record)
    assert not VALIDATOR.is_valid(record)


@pytest.mark.parametrize("change", [change for change, _ in BEYOND_STRUCTURE])
def test_knows_its_limits(change):
    record = json.loads(pets().to_json(sample_weights=True))
    change(record)
    assert VALIDATOR.is_valid(record)
    with pytest.raises(FileFormatError):
        PromptEnsemble.from_json(json.dumps(record))


def test_describes_every_field_that_is_written():
    record = json.loads(pets().add("cat", "a pet").to_json(sample_weights=True))
    schema = json_schema()
    jsonschema.validate(record, schema)
    assert set(record) == set(schema["properties"])
    assert set(record["rounds"][0]) == set(schema["$defs"]["round"]["properties"])


SEVERAL = jsonschema.Draft202012Validator(json_schema(2))
FURTHER = st.lists(
    st.builds(
        EncoderRecord,
        TEXT,
        st.none() | TEXT,
        st.none() | st.floats(0.01, 1000.0),
        st.none() | st.floats(0.01, 1000.0),
    ),
    min_size=1,
    max_size=3,
)


@given(ensembles(prompts=TEXT), TEXT, FURTHER)
@PATIENT
def test_a_text_learned_on_several_encoders_is_of_version_2(ensemble, first, further):
    several = replace(ensemble, encoder_id=first, further_encoders=further)
    record = json.loads(several.to_json(sample_weights=True))
    assert record["schema_version"] == 2
    SEVERAL.validate(record)
    assert not VALIDATOR.is_valid(record)
    again = PromptEnsemble.from_json(several.to_json())
    assert again == several
    assert [item.id for item in again.encoders] == [first, *(item.id for item in further)]
    # Without them it is what it always was, to the last character.
    alone = replace(several, encoder_id=ensemble.encoder_id, further_encoders=())
    assert alone.to_json() == ensemble.to_json()
    assert json.loads(ensemble.to_json())["schema_version"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("further_encoders"), "further_encoders: must be a list"),
        (lambda r: r.update(further_encoders=[]), "further_encoders: must be a list"),
        (lambda r: r.update(further_encoders=["b"]), r"further_encoders\[0\]: must be an object"),
        (lambda r: r["further_encoders"][0].pop("id"), r"further_encoders\[0\]\.id: is missing"),
        (lambda r: r["further_encoders"][0].update(id=" "), r"further_encoders\[0\]\.id: is blank"),
        (lambda r: r["further_encoders"][0].update(dim=3), r"further_encoders\[0\]\.dim: is not a"),
        (
            lambda r: r["further_encoders"][0].update(logit_scale=0),
            r"further_encoders\[0\]\.logit_scale: must be positive",
        ),
        (lambda r: r.update(schema_version=1), "further_encoders: is not a field"),
        (lambda r: r.update(schema_version=3), "reads up to 2"),
    ],
)
def test_what_is_wrong_with_further_encoders_is_said(change, message):
    several = pets(encoder_id="a", further_encoders=(EncoderRecord("b", "print", 30.0, 10.0),))
    record = json.loads(several.to_json())
    change(record)
    assert not SEVERAL.is_valid(record)
    with pytest.raises(FileFormatError, match=message):
        PromptEnsemble.from_json(json.dumps(record))


def test_there_are_two_versions():
    assert json_schema(2)["title"] == "promptboost ensemble, version 2"
    with pytest.raises(SettingError, match="there are 1 and 2"):
        json_schema(3)
    with pytest.raises(SettingError, match="encoder_id: is missing"):
        pets(encoder_id=None, further_encoders=(EncoderRecord("b"),))

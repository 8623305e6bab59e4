import json

import jsonschema
import pytest
from hypothesis import given

from promptboost.errors import FileFormatError
from promptboost.model import PromptEnsemble
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
    record = json.loads(pets().to_json(sample_weights=True))
    schema = json_schema()
    assert set(record) == set(schema["properties"])
    assert set(record["rounds"][0]) == set(schema["$defs"]["round"]["properties"])

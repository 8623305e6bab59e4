"""FittedMethod classifiers as files: what comes back, and what is refused."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptboost.errors import FileFormatError
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.fitted import LinearClassifier, TextClassifier
from tests.methods.small_task import ENCODER, IMAGES, OTHER, linear_classifier, text_classifier


@pytest.mark.parametrize("make", [text_classifier, linear_classifier])
def test_what_is_loaded_is_what_was_saved(
    make: Callable[[], TextClassifier | LinearClassifier], tmp_path: Path
) -> None:
    fitted = make()
    save_fitted(fitted, tmp_path / "deep" / "folder")
    again = load_fitted(tmp_path / "deep" / "folder", ENCODER)
    assert isinstance(again, type(fitted))
    assert again.origin == fitted.origin
    assert again.details == fitted.details
    np.testing.assert_array_equal(again.logits(IMAGES), fitted.logits(IMAGES))


def test_saving_over_another_leaves_no_trace(tmp_path: Path) -> None:
    save_fitted(linear_classifier(), tmp_path)
    save_fitted(text_classifier(), tmp_path)
    assert isinstance(load_fitted(tmp_path, ENCODER), TextClassifier)


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    save_fitted(text_classifier(), tmp_path)
    with pytest.raises(FileFormatError, match=r"fitted on 'fake:16-0'.* then transfer it"):
        load_fitted(tmp_path, OTHER)


def test_a_folder_without_anything(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"there is no method\.json"):
        load_fitted(tmp_path, ENCODER)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "other"),
        ("schema_version", 1),
        ("kind", "pickle"),
        ("kind", ["text"]),
        ("class_names", 3),
        ("encoder", "fake"),
        ("encoder", {}),
        ("arrays", None),
        ("arrays", ["rows"]),
        ("fields", []),
        ("fields", {"banks": []}),
        ("fields", {"banks": [{}, {"a": 1}]}),
        ("fields", {"banks": [{"a": "much"}, {"a": 1}]}),
        ("fields", {"banks": [{"a": float("nan")}, {"a": 1}]}),
        ("fields", {"unit": True}),
        ("fields", {"banks": [{"a": 1}, {"a": 1}], "unit": "no"}),
        ("fields", {"banks": [{"a": 1}, {"a": 1}], "details": 3}),
        ("fields", {"banks": [{"a": 1}, {"a": 1}], "other": 3}),
    ],
)
def test_a_damaged_record_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    save_fitted(text_classifier(), tmp_path)
    path = tmp_path / "method.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, key: value}))
    with pytest.raises(FileFormatError):
        load_fitted(tmp_path, ENCODER)


@pytest.mark.parametrize(
    "key", ["format", "kind", "method", "class_names", "encoder", "arrays", "fields"]
)
def test_what_is_missing_is_refused(key: str, tmp_path: Path) -> None:
    save_fitted(text_classifier(), tmp_path)
    path = tmp_path / "method.json"
    record = json.loads(path.read_text())
    del record[key]
    path.write_text(json.dumps(record))
    with pytest.raises(FileFormatError):
        load_fitted(tmp_path, ENCODER)


@pytest.mark.parametrize("make", [text_classifier, linear_classifier])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_files_that_are_cut_off_are_refused(
    make: Callable[[], TextClassifier], share: float, tmp_path: Path
) -> None:
    save_fitted(make(), tmp_path)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(FileFormatError):
            load_fitted(tmp_path, ENCODER)
        path.write_bytes(whole)


def test_arrays_that_are_gone_are_refused(tmp_path: Path) -> None:
    save_fitted(linear_classifier(), tmp_path)
    (tmp_path / "arrays.safetensors").unlink()
    with pytest.raises(FileFormatError, match=r"there is no arrays\.safetensors"):
        load_fitted(tmp_path, ENCODER)


def test_files_of_two_classifiers_do_not_mix(tmp_path: Path) -> None:
    save_fitted(linear_classifier(), tmp_path)
    before = (tmp_path / "method.json").read_bytes()
    other = dataclasses.replace(linear_classifier(), rows=linear_classifier().rows * 2)
    save_fitted(other, tmp_path)
    load_fitted(tmp_path, ENCODER)
    # As if it had been interrupted between the two files.
    (tmp_path / "method.json").write_bytes(before)
    with pytest.raises(FileFormatError, match="do not belong together"):
        load_fitted(tmp_path, ENCODER)


def test_what_cannot_be_written_leaves_what_is_there(tmp_path: Path) -> None:
    save_fitted(linear_classifier(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    bad = dataclasses.replace(
        linear_classifier(), rows=linear_classifier().rows * 2, details={"C": float("nan")}
    )
    with pytest.raises(ValueError, match="JSON compliant"):
        save_fitted(bad, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

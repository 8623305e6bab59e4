import json

import pytest

from promptboost.errors import FileFormatError, RunError
from promptboost.runs.metrics import read_metrics, write_metrics


def test_what_is_written_is_read(fitted):
    path = fitted / "run/metrics.json"
    metrics = read_metrics(path)
    write_metrics(path, metrics)
    assert read_metrics(path) == metrics


def test_not_a_number_is_refused_before_the_file_is_touched(fitted):
    path = fitted / "run/metrics.json"
    before = path.read_bytes()
    with pytest.raises(ValueError, match="Out of range"):
        write_metrics(path, {**read_metrics(path), "timing": {"total_s": float("nan")}})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "part"),
    [("{", "is not JSON"), ("[]", "schema_version"), ('{"schema_version": 2}', "pip install -U")],
)
def test_files_that_are_something_else(tmp_path, text, part):
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=part):
        read_metrics(path)


def test_missing_files_and_parts(fitted):
    path = fitted / "run/metrics.json"
    metrics = read_metrics(path)
    del metrics["staged"]
    path.write_text(json.dumps(metrics))
    with pytest.raises(FileFormatError, match="lacks 'staged'"):
        read_metrics(path)
    path.unlink()
    with pytest.raises(RunError, match="does not exist"):
        read_metrics(path)

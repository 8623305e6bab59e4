import json
from pathlib import Path

import msgspec
import pytest

from promptboost.baselines import MethodResult
from promptboost.errors import FileFormatError, RunError
from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder


def test_what_is_written_is_read(fitted):
    path = fitted / "run/metrics.json"
    results = Results.read(path)
    before = path.read_bytes()
    results.write(path)
    assert path.read_bytes() == before
    assert Results.read(path) == results


def test_not_a_number_is_refused_before_the_file_is_touched(fitted):
    path = fitted / "run/metrics.json"
    before = path.read_bytes()
    wrong = msgspec.structs.replace(Results.read(path), timing={"total_s": float("nan")})
    with pytest.raises(ValueError, match="Out of range"):
        wrong.write(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not JSON"),
        ("[]", "schema_version"),
        ('{"schema_version": 1}', "fit the run again"),
        ('{"schema_version": 3}', "pip install -U"),
    ],
)
def test_files_that_are_something_else(tmp_path, text, part):
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=rf"metrics\.json.*{part}"):
        Results.read(path)


def test_missing_files_and_parts(fitted):
    path = fitted / "run/metrics.json"
    record = json.loads(path.read_text())
    del record["methods"]
    path.write_text(json.dumps(record))
    with pytest.raises(FileFormatError, match=r"metrics\.json: .*missing required field `methods`"):
        Results.read(path)
    path.unlink()
    with pytest.raises(RunError, match="does not exist"):
        Results.read(path)


def test_probabilities_are_measured_and_shown(fitted):
    ours = Results.read(fitted / "run/metrics.json").method("promptboost")
    assert ours.log_loss > 0
    assert 0 <= ours.expected_calibration_error <= 1
    page = (fitted / "run/report.html").read_text()
    assert "calibration error" in page


def test_every_figure_of_a_method_is_on_the_page_by_its_field():
    """A column is one field of MethodResult, one line in Guesses.result, one place in the page."""
    import promptboost.report

    templates = Path(promptboost.report.__file__).parent / "templates"
    page = (templates / "report.html.j2").read_text()
    for field in msgspec.structs.fields(MethodResult):
        shown = "shown | percent" if field.name == "accuracy" else f".{field.name}"
        assert field.name == "name" or shown in page


def test_prompts_have_an_example_among_the_training_images_of_their_class(fitted):
    folder = RunFolder(fitted / "run")
    results, ensemble = folder.results, folder.ensemble
    thumbnails = json.loads(folder.thumbnails_path.read_text())
    held_out = {line.split(",")[0] for line in folder.predictions_path.read_text().splitlines()}
    assert list(results.examples) == list(ensemble.class_names)
    for name, examples in results.examples.items():
        assert list(examples) == list(ensemble.prompts(name))[: len(examples)]
        for image in examples.values():
            assert Path(image).parent.name == name
            assert image in thumbnails
            assert image not in held_out

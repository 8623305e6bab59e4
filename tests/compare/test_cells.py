import pytest

from promptboost.compare.cells import ResultLog


def test_what_is_there_is_not_done_again(tmp_path):
    path = tmp_path / "deep" / "cells.jsonl"
    done = []

    def work(key):
        done.append(key["n"])
        return [{"square": key["n"] ** 2}]

    keys = [{"n": 1}, {"n": 2}]
    ResultLog(path).fill(keys, work)
    found = ResultLog(path).fill([*keys, {"n": 3}], work)
    assert done == [1, 2, 3]
    assert [result["square"] for result in found] == [1, 4, 9]


@pytest.mark.parametrize(
    "torn", ['{"key": {"n": 2}, "resu', '{"key": {"n": 2}}', "[1]", '"text"', "\x00"]
)
def test_a_torn_line_loses_only_itself(tmp_path, torn):
    path = tmp_path / "cells.jsonl"
    log = ResultLog(path)
    log.keep({"n": 1}, [{"x": 1}], 0.0)
    with path.open("a") as file:
        file.write("\n" + torn)
    again = ResultLog(path)
    again.keep({"n": 3}, [{"x": 3}], 0.0)
    assert [r["n"] for r in ResultLog(path).results([{"n": 1}, {"n": 2}, {"n": 3}])] == [1, 3]


def test_numbers_that_json_has_not_are_refused_before_anything_is_written(tmp_path):
    log = ResultLog(tmp_path / "cells.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        log.keep({"n": 1}, [{"x": float("nan")}], 0.0)
    assert not (tmp_path / "cells.jsonl").exists()
    assert {"n": 1} not in log

import pytest

from promptboost.compare.cells import ResultLog, cell_file


def keep(log, key, results):
    log.storage.write(log.name(key), cell_file(key, results, {}))
    assert log.take(log.name(key))


def test_what_is_there_is_not_done_again(tmp_path):
    path = tmp_path / "deep" / "cells.jsonl"
    for n in (1, 2):
        keep(ResultLog(path), {"n": n}, [{"square": n**2}])
    log = ResultLog(path)
    assert {"n": 2} in log
    assert {"n": 3} not in log
    assert [result["square"] for result in log.results([{"n": 1}, {"n": 2}, {"n": 3}])] == [1, 4]
    log.write()
    log.storage.remove(log.name({"n": 1}))
    assert {"n": 1} in ResultLog(path)


@pytest.mark.parametrize(
    "torn", ['{"key": {"n": 2}, "resu', '{"key": {"n": 2}}', "[1]", '"text"', "\x00"]
)
def test_a_torn_line_loses_only_itself(tmp_path, torn):
    path = tmp_path / "cells.jsonl"
    log = ResultLog(path)
    keep(log, {"n": 1}, [{"x": 1}])
    with path.open("a") as file:
        file.write("\n" + torn)
    again = ResultLog(path)
    keep(again, {"n": 3}, [{"x": 3}])
    assert [r["n"] for r in ResultLog(path).results([{"n": 1}, {"n": 2}, {"n": 3}])] == [1, 3]


def test_numbers_that_json_has_not_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        cell_file({"n": 1}, [{"x": float("nan")}], {})

import json

import promptboost.run.results as results
from promptboost.distributed.pool_folder import PoolExecutor
from promptboost.run.fit import fit_run
from promptboost.run.run_folder import RunFolder
from tests.run.run_tools import interrupted, request


def test_rows_of_a_big_pool_are_in_the_run_folder_until_it_is_finished(task, monkeypatch):
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 0)
    with interrupted(1):
        fit_run(**request(task, cache=False, executor=PoolExecutor()))
    assert len(list((task / "run" / "pool-rows").iterdir())) == 1
    fit_run(**request(task, cache=False, resume=True, executor=PoolExecutor()))
    assert not (task / "run" / "pool-rows").exists()
    assert RunFolder(task / "run").state == "finished"
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 2**40)
    fit_run(**request(task, "other"))
    assert (task / "run/ensemble.json").read_bytes() == (task / "other/ensemble.json").read_bytes()


def test_what_is_left_of_an_unfinished_run_goes_with_overwrite(task, monkeypatch):
    fit_run(**request(task))
    (task / "run" / "pool-rows" / "old").mkdir(parents=True)
    fit_run(**request(task, overwrite=True))
    assert not (task / "run" / "pool-rows").exists()


def test_left_out_sentences_are_said_and_chosen_ones_know_their_source(task):
    (task / "descriptors_x.json").write_text(json.dumps({"Sea": ["", "deep blue water"]}))
    said = []
    metrics = fit_run(**request(task, prompts=str(task / "descriptors_x.json")), say=said.append)
    assert any(line.endswith("1 blank") for line in said)
    chosen = metrics.pool.chosen
    assert set(chosen["sea"].values()) <= {"template", "dclip"}
    ensemble = json.loads((task / "run/ensemble.json").read_text())
    texts = {text for item in ensemble["rounds"] for text in item["banks"]["sea"]}
    assert set(chosen["sea"]) == texts

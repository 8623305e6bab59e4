"""A pool too large for memory, embedded and read by nodes of a real cluster: the text of one process."""

import promptboost.training.pool_rows as pool_rows
from promptboost.runs.fit import fit_run
from promptboost.scale.engine import Placement
from tests.cli.cli_tools import FIT, call
from tests.runs.run_tools import request


def test_a_fit_on_ray_learns_the_text_of_one_process(task, cluster, monkeypatch):
    fit_run(request(task, "here"))
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", 0)
    said = []
    fit_run(request(task, "there", placement=Placement("ray", workers=2)), said.append)
    assert not any("fits into memory" in line for line in said)
    for name in ("ensemble.json", "predictions.csv"):
        assert (task / "here" / name).read_bytes() == (task / "there" / name).read_bytes()
    assert not (task / "there" / "pool-rows").exists()


def test_where_it_is_done_may_stand_in_the_settings_file(task, capsys):
    """What is typed wins over the file; here both lead to a small pool that is read in this process."""
    fit = ["fit", task / "images", "-o", task / "run", *FIT, "--prompts", task / "sentences.json"]
    file = task / "settings.toml"
    file.write_text('[scale]\non = "ray"\nworkers = 2\n\n[fit]\nshots = 2\n')
    answer = call(capsys, *fit, "--config", file)
    assert answer.code == 0, answer.err
    assert "not on ray" in answer.err
    typed = call(capsys, *fit, "--overwrite", "--config", file, "--on", "ray://elsewhere:1")
    assert "not on ray://elsewhere:1" in typed.err
    for table, said in (("nodes = 2", "no setting 'nodes'"), ("workers = 'x'", "a whole number")):
        file.write_text(f"[scale]\n{table}\n")
        wrong = call(capsys, *fit, "--overwrite", "--config", file)
        assert (wrong.code, said in wrong.err) == (2, True), wrong.err

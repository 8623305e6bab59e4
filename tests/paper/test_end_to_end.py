"""Two entries of the paper from download to table, in this process; ``make paper`` runs all."""

import pytest

from promptboost.data.benchmarks import BENCHMARKS
from tests.cli.cli_tools import call


def test_two_entries_from_download_to_table(tmp_path, monkeypatch, capsys):
    pytest.importorskip("open_clip", reason="needs the extra clip")
    pytest.importorskip("openai", reason="needs the extra llm")
    from tests.paper.end_to_end import run, small_benchmarks

    for name, benchmark in small_benchmarks().items():
        monkeypatch.setitem(BENCHMARKS, name, benchmark)

    def called(*arguments):
        answer = call(capsys, *arguments)
        assert answer.code == 0, answer.err
        return answer.out

    records = run(tmp_path, ["pez-failure", "transfer-vit-l"], ["dtd"], call=called, shots="1")
    assert [record["name"] for record in records] == ["pez-failure", "transfer-vit-l"]
    rows = {tuple(number["row"]) for number in records[1]["numbers"]}
    assert {row[1] for row in rows} == {
        *("Zero-shot", "CoOp+EFT", "PromptSRC+EFT", "PEZ", "ProAPO", "TPB")
    }
    table = (tmp_path / "out" / "transfer-vit-l" / "table.md").read_text(encoding="utf-8")
    assert "Pool of dtd: " in table
    assert "80 of them CLIP's as published" in table
    assert "PEZ: draws its crops from the stored ones" in table

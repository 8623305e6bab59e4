import json

from promptboost.config import FitConfig
from promptboost.pool import build_pool, save_pool
from promptboost.run.fit import prompts_remarks


def test_sentences_that_nobody_can_use_are_counted(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"owl": ["", " ", "eyes"], "bat": ["\x1b[2J"]}))
    assert prompts_remarks(FitConfig(prompts=str(file))) == [
        f"sentences left out of {file}: 2 blank, 1 damaged"
    ]
    file.write_text(json.dumps({"owl": ["eyes"]}))
    assert prompts_remarks(FitConfig(prompts=str(file))) == []
    save_pool(build_pool(["owl"]), tmp_path / "pool.jsonl")
    assert prompts_remarks(FitConfig(prompts=str(tmp_path / "pool.jsonl"))) == []
    assert prompts_remarks(FitConfig()) == []

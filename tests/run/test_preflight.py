import pytest

from promptboost.config import FitConfig
from promptboost.data.source import DataSource
from promptboost.errors import FileFormatError, PoolError
from promptboost.pool import PromptPool, build_pool, save_pool
from promptboost.pool.pool import ClassPrompts, Prompt
from promptboost.run.fit import check_inputs


def check(file):
    check_inputs(DataSource.parse("emoji"), FitConfig(prompts=str(file)))


def test_sentences_and_pools_are_looked_at_before_images(tmp_path):
    file = tmp_path / "pool.jsonl"
    save_pool(build_pool(["owl", "bat"]), file)
    check(file)
    text = file.read_text()
    file.write_text(text.replace('"promptboost_pool": 1', '"promptboost_pool": 9', 1))
    with pytest.raises(FileFormatError, match="has version 9"):
        check(file)
    save_pool(PromptPool({"owl": ClassPrompts("owl", [Prompt("eyes", "mine")])}, ()), file)
    with pytest.raises(PoolError, match=r"has no templates.*promptboost pool build .*--classes"):
        check(file)
    with pytest.raises(PoolError, match="does not exist"):
        check(tmp_path / "none.jsonl")
    (tmp_path / "cut.json").write_text('{"owl": [')
    with pytest.raises(FileFormatError, match="cut off"):
        check(tmp_path / "cut.json")

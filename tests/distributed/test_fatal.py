"""Images and texts that end or stop the process they are given to, on a real cluster: a line each."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from promptboost.compare.compare import compare
from promptboost.distributed.answer_shards import Answering, predict_in_shards
from promptboost.distributed.crew import Crew, _Attempt, _Member
from promptboost.distributed.embed import embed_data
from promptboost.distributed.engine import Placement
from promptboost.distributed.unit import Job, WorkUnit
from promptboost.errors import RunError, SettingError
from tests.compare.test_compare import request as comparison
from tests.distributed.shard_tools import FATAL, FatalEncoder, own_cache, stored

THERE = Placement("ray", workers=2, per_shard=6)


@pytest.fixture
def impatient(tmp_path, monkeypatch):
    """Have a worker given up when it really hangs, which the encoder says, and never else.

    In the end, none of those processes is left.
    """
    sign, hung = tmp_path / "hangs", []
    monkeypatch.setenv("PROMPTBOOST_HANGS", str(sign))
    lost = Crew._lost

    def noted(self, *given, **named):
        hung.append(psutil.Process(int(sign.read_text())))
        sign.unlink()
        return lost(self, *given, **named)

    monkeypatch.setattr(Crew, "_seconds", lambda *_: 0.5 if sign.exists() else math.inf)
    monkeypatch.setattr(Crew, "_lost", noted)
    yield
    assert len(hung) >= 2
    _, left = psutil.wait_procs(hung, timeout=300)
    assert left == []


def test_an_image_that_kills_its_worker_is_a_line_and_the_others_are_embedded(task, cluster):
    fatal = task / "images" / "sea" / "fatal.png"
    Image.new("RGB", FatalEncoder.kills, "red").save(fatal)
    said, stores = [], []
    with own_cache(task / "there"):
        place = replace(THERE, storage=str(task / "out"))
        record = embed_data(str(task / "images"), FATAL, place=place, say=said.append)
        stores.append(stored(FATAL))
    assert record["bad_images"] == [{"path": str(fatal), "reason": "it killed its worker"}]
    assert (record["images"], len(stores[0])) == (32, 32)
    # Two ends by the shard, two by the image alone.
    assert sum(line.startswith("lost a worker, and another") for line in said) == 4
    assert f"left out {fatal}: it killed its worker" in said
    fatal.write_bytes(b"poison")
    with own_cache(task / "here"):
        embed_data(str(task / "images"), FATAL, place=Placement(per_shard=6))
        stores.append(stored(FATAL))
    assert stores[0] == stores[1]


def test_a_text_that_kills_its_worker_is_a_line_and_the_others_are_embedded(tmp_path, cluster):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"text {n}\n" for n in range(20)) + "a fatal one\n")
    with own_cache(tmp_path / "cache"):
        place = Placement("ray", workers=1, storage=str(tmp_path / "out"))
        record = embed_data(None, FATAL, texts=str(texts), place=place)
        assert record["bad_texts"] == [{"text": "a fatal one", "reason": "it killed its worker"}]
        assert (record["texts"], len(stored(FATAL))) == (20, 20)


def test_a_row_that_hangs_its_worker_is_a_line_and_the_others_are_answered(
    fitted, cluster, impatient
):
    files = sorted((fitted / "images").rglob("*.png"))[:6]
    Image.new("RGB", FatalEncoder.hangs, "red").save(fitted / "hangs.png")
    files.insert(3, fitted / "hangs.png")
    pq.write_table(
        pa.table({"image": [file.read_bytes() for file in files]}), fitted / "rows.parquet"
    )
    output = fitted / "out.jsonl"
    predict_in_shards(
        *(fitted / "run", [str(fitted / "rows.parquet")], str(output)),
        *(Answering(encoders=[FATAL]), Placement("ray", workers=1)),
    )
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    problems = [line["error"] for line in lines]
    assert problems == [None] * 3 + ["it gave no answer in 0.5 s"] + [None] * 3
    assert lines[3]["image"].endswith("rows.parquet#3")
    assert all(line["predicted"] for line in lines if line["error"] is None)


def test_a_cell_that_hangs_is_left_out_with_the_reason(noisy_task, cluster, impatient):
    folder = next(path for path in (noisy_task / "images").iterdir())
    for file in folder.iterdir():
        file.unlink()
    for number in range(8):
        colour = (number, 0, 0)
        Image.new("RGB", FatalEncoder.hangs, colour).save(folder / f"{number}.png")
    few = {"methods": ("zero-shot",), "shots": (1,), "seeds": (1,), "encoder": FATAL}
    found = compare(comparison(noisy_task, "out", **few), place=Placement("ray", workers=1))
    assert found.failed == [
        "zero-shot, 1 shots, seed 1: 2 workers that had it in hand ended, the last because: it gave no "
        "answer in 0.5 s"
    ]


def test_where_everything_kills_the_command_says_so_after_a_few_units(task, cluster, monkeypatch):
    """No image is blamed for an encoder that ends on a plain one, too."""
    monkeypatch.setenv("PROMPTBOOST_ALL_KILL", "1")
    place = Placement("ray", workers=3, storage=str(task / "out"), per_shard=6)
    with pytest.raises(
        RunError, match=r"nothing could be done of 3 units: .* something plain, the last because"
    ):
        embed_data(str(task / "images"), FATAL, place=place)


def crew_for(worker):
    """Return a crew without a cluster."""
    job = Job(f"promptboost.{worker}", {}, "out")
    return Crew(SimpleNamespace(remote=lambda made: made), job, None, 1, lambda line: None)


def test_an_item_that_workers_do_not_leave_out_ends_its_unit_at_last():
    crew = crew_for("scale.shard_embeddings:ImageShardWorker")
    attempt = _Attempt(WorkUnit("shard", {}), by_item=True, tried=1.0)
    for number in range(20):
        crew._members[number] = _Member(None, None, node="a", hand=attempt, item="a.png")
        if (receipt := crew._lost(number, "gone")) is not None:
            break
    assert (
        receipt.problem
        == "7 workers that had it in hand ended, with a.png in hand, the last because: gone"
    )
    assert attempt.unit.order["lost"] == {"a.png": "it killed its worker"}


def limits(worker, **facts):
    """Return how long a unit, and an item, may take where some is known of units before."""
    crew = crew_for(worker)
    crew._longest = facts.get("longest", 0.0)
    attempt = SimpleNamespace(by_item=False, patience=facts.get("patience", 0.0))
    whole = crew._seconds(SimpleNamespace(item=None), attempt)
    attempt.by_item = True
    return whole, crew._seconds(SimpleNamespace(item="a.png"), attempt)


def test_the_limit_comes_from_units_that_are_done_or_is_set(monkeypatch):
    images = "scale.shard_embeddings:ImageShardWorker"
    cells = "evaluation.cell_worker:CellWorker"
    monkeypatch.delenv("PROMPTBOOST_UNIT_SECONDS", raising=False)
    assert limits(images) == (3600, 300)
    assert limits(images, longest=2.0) == (600, 300)
    assert limits(images, longest=100.0) == (2000, 300)
    assert limits(images, longest=100.0, patience=9000.0) == (9000, 300)
    assert limits(cells, longest=2.0)[0] == 86400
    monkeypatch.setenv("PROMPTBOOST_UNIT_SECONDS", "1800")
    assert limits(images, longest=100.0) == (1800, 300)
    assert limits(cells)[0] == 1800
    monkeypatch.setenv("PROMPTBOOST_UNIT_SECONDS", "20")
    assert limits(images, longest=100.0) == (20, 20)
    for wrong in ("soon", "0", "-3"):
        monkeypatch.setenv("PROMPTBOOST_UNIT_SECONDS", wrong)
        with pytest.raises(SettingError, match=f"is '{wrong}'; give seconds, such as 1800"):
            limits(images)

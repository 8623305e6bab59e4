"""Answers by shard: what very many images show, by many processes, in one file of lines or one table."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from promptboost.data.decode import BadImage
from promptboost.distributed.engine import Placement, Say
from promptboost.distributed.items import ImageItem, is_url, list_items
from promptboost.distributed.shard_embeddings import (
    open_images,
    plain_image,
    raising,
    tried_one_by_one,
)
from promptboost.distributed.shards import (
    SHARD_IMAGES,
    ShardPlan,
    carry_out_plan,
    cut,
    read_list,
)
from promptboost.distributed.storage import Storage, open_url, reaching
from promptboost.distributed.unit import Job, Result, unit_name
from promptboost.errors import DataError, MissingExtraError, SettingError
from promptboost.io import json_text, read_bytes, replacing
from promptboost.progress import Progress, no_progress
from promptboost.run.predict import Prediction, Predictor, answer_record
from promptboost.run.run_folder import RunFolder

_LINES, _TABLE = (".jsonl", ".ndjson"), ".parquet"
# What a run answers with; its figures, its report and its images stay where they are.
_TEXTS = ("ensemble.json", "residual.json", "run.toml")


class Answering(msgspec.Struct, frozen=True, kw_only=True):
    """How images are to be answered; see :meth:`~promptboost.run.predict.Predictor.open`."""

    encoders: list[str] = []
    average: bool = False
    text_only: bool = False
    device: str | None = None
    allow_download: bool = False
    top_k: int = 1
    min_probability: float | None = None

    def open(self, run: Path) -> Predictor:
        """Load a run, without the store: what is in it would change which images are encoded together."""
        return Predictor.open(
            run,
            encoder=self.encoders or None,
            average=self.average,
            text_only=self.text_only,
            cache=False,
            device=self.device,
            allow_download=self.allow_download,
        )


class AnswerShardWorker:
    """Answers for the images of shards, with a run and its encoders that are loaded once."""

    def __init__(self, out: str, run: str, how: dict[str, Any]) -> None:
        self._storage, self._how = Storage(out), msgspec.convert(how, Answering)
        with tempfile.TemporaryDirectory(prefix="promptboost-") as folder:
            for name in self._storage.names(run):
                (Path(folder) / name).write_bytes(self._storage.read(f"{run}/{name}"))
            self._predictor = self._how.open(Path(folder))
            _ = self._predictor.classifier.heads  # read while their files exist

    def do(self, order: dict[str, Any]) -> Result:
        """Answer for one shard, a line of JSON for each image."""
        items, lost = read_list(self._storage, order), order.get("lost", {})
        try:
            answers = list(self._answers(open_images(items, lost=lost)))
        except MemoryError:
            raise
        except Exception as error:
            answers = self._one_by_one(items, lost, error)
        asked = self._how.min_probability is not None
        lines = [_line(answer_record(answer, asked)) for answer in answers]
        return Result(b"".join(lines), len(answers))

    def items(self, order: dict[str, Any]) -> Iterator[str]:
        """Answer for the images of a shard one by one, for nothing."""
        items, lost = read_list(self._storage, order), order.get("lost", {})
        return tried_one_by_one(items, lost, lambda image: list(self._answers([image])))

    def _answers(self, images: Any) -> Iterator[Prediction]:
        how = self._how
        return self._predictor.answers(images, how.top_k, how.min_probability or 0.0)

    def _one_by_one(
        self, items: Sequence[ImageItem], lost: Mapping[str, str], error: Exception
    ) -> list[Prediction]:
        """Find the images that an encoder fails on; if it fails on a plain one, the fault is not theirs."""
        answers: list[Prediction] = []
        for image in open_images(items, lost=lost):
            try:
                answers += self._answers([image])
            except Exception as fault:
                name = image.path if isinstance(image, BadImage) else image.id
                answers.append(Prediction(name, problem=str(fault) or type(fault).__name__))
        if all(answer.problem is not None for answer in answers):
            with raising(error):
                list(self._answers([plain_image()]))
        return answers


def _line(record: dict[str, Any]) -> bytes:
    """Return a line of JSON in ASCII, controls escaped, as ``predict --format jsonl`` prints it."""
    return json.dumps(record, allow_nan=False).replace("\x7f", "\\u007f").encode() + b"\n"


def predict_in_shards(
    run: Path,
    images: Sequence[str],
    output: str,
    how: Answering,
    place: Placement,
    *,
    progress: Progress = no_progress,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Answer for images in shards, and put all answers into one file.

    Parameters
    ----------
    run : path
        The run; what it answers with is copied into the storage, for workers elsewhere.
    images : sequence of str
        Folders, images, manifests, Parquet files and tars, by path or URL.
    output : str
        A file or URL that ends in ``.jsonl`` or ``.parquet``. It has one line for each image, in the
        order of the listing, and is the same whoever did the work.
    how : Answering
    place : Placement
        By default the shards lie beside the output, and are deleted once it is written.
    progress : callable, optional
    say : callable, optional
        Called with a line for people now and then.
    """
    check_output(output)
    how.open(run)  # what is wrong with it is found here, not by every worker
    out = place.storage or f"{output}.shards"
    out = out if is_url(out) else os.path.abspath(out)
    copied = _copy_run(run, Storage(out), write=not place.merge)
    settings = {"out": out, "run": copied, "how": msgspec.to_builtins(how)}
    size = place.per_shard or SHARD_IMAGES
    sources = list(dict.fromkeys(images))
    plan = ShardPlan.of(
        Job(
            "promptboost.distributed.answer_shards:AnswerShardWorker",
            settings,
            out,
            device=how.device,
        ),
        cut(list_items(sources, table_rows=size), size),
        [copied, json_text(msgspec.to_builtins(msgspec.structs.replace(how, device=None)))],
        of="images",
        ending=".answers.jsonl",
        share=place.share,
        write=not place.merge,
    )
    share = place.share
    if not plan.units and share is None:
        raise DataError(f"there are no images in {', '.join(map(str, images))}")
    outcome = carry_out_plan(plan, place, progress, "predicting", what="images", say=say)
    record: dict[str, Any] = {
        "run": str(run),
        "output": output,
        "storage": out,
        "shards": len(plan.units),
        "new_shards": outcome.units - outcome.done_before,
        "share": None if share is None else f"{share.number}/{share.of}",
    }
    if share is not None:
        return record
    counts = {"images": 0, "problems": 0}

    def records() -> Iterator[list[dict[str, Any]]]:
        for content in plan.results():
            answers = [msgspec.json.decode(line) for line in content.splitlines()]
            counts["images"] += len(answers)
            counts["problems"] += sum(answer["problem"] is not None for answer in answers)
            yield answers

    columns = ("picture", "predicted", "probability", "top", "problem")
    asked = how.min_probability is not None
    write_records(output, (*columns, "unsure", "best") if asked else columns, records())
    if place.storage is None:
        _remove(out)
    return {**record, **counts}


def _copy_run(run: Path, storage: Storage, *, write: bool) -> str:
    """Copy what a run answers with into the storage, under a name made of it; return that."""
    folder = RunFolder(run)

    def read() -> dict[str, bytes]:
        found = [run / name for name in _TEXTS if (run / name).is_file()]
        return {
            file.name: read_bytes(file) for file in [*found, *sorted(run.glob("head*.safetensors"))]
        }

    files = folder.steady(read)
    place = "runs/" + unit_name([part for item in files.items() for part in item], "")
    there = set(storage.names(place))
    for name, content in files.items():
        if write and name not in there:
            storage.write(f"{place}/{name}", content)
    return place


def check_output(output: str) -> None:
    """Raise for a file that answers cannot be written into: now, not after hours."""
    ending = Path(output).suffix.lower()
    if ending not in (*_LINES, _TABLE):
        raise SettingError(
            f"{output} ends in {ending or 'nothing'}; give a file that ends in .jsonl or .parquet"
        )
    if ending == _TABLE:
        _parquet()


def write_records(
    output: str, columns: Sequence[str], parts: Iterable[list[dict[str, Any]]]
) -> None:
    """Write records into a file of lines or a table, whole or not at all, a part at a time."""
    with _whole(output) as file:
        if Path(output).suffix.lower() != _TABLE:
            with file.open("wb") as stream:
                for records in parts:
                    stream.writelines(_line(record) for record in records)
            return
        arrow, parquet = _parquet()
        schema = arrow.schema([(name, _kind(arrow, name)) for name in columns])
        with parquet.ParquetWriter(file, schema) as writer:
            for records in parts:
                writer.write_table(arrow.Table.from_pylist(records, schema=schema))


def _kind(arrow: Any, column: str) -> Any:
    one = {"probability": arrow.float64(), "unsure": arrow.bool_()}
    if column == "top":
        answer = [("class", arrow.string()), ("probability", arrow.float64())]
        return arrow.list_(arrow.struct(answer))
    return one.get(column, arrow.string())


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "Parquet needs pyarrow, which is not installed; type: pip install 'promptboost[ray]'"
        ) from error
    return pyarrow, pyarrow.parquet


@contextmanager
def _whole(output: str) -> Iterator[Path]:
    """Return a file to fill, which then stands at its place, whole or not at all."""
    if not is_url(output):
        with replacing(output) as file:
            yield file
        return
    with tempfile.TemporaryDirectory(prefix="promptboost-") as folder:
        file = Path(folder) / "answers"
        yield file
        system, path = open_url(output)
        with reaching(output):
            system.put_file(str(file), path)


def _remove(out: str) -> None:
    if is_url(out):
        system, path = open_url(out)
        with reaching(out):
            system.rm(path, recursive=True)
    else:
        shutil.rmtree(out, ignore_errors=True)

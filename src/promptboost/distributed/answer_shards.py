"""Predict many images in shards, with many processes, into one JSON lines or Parquet file."""

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
from promptboost.model.classifier import PromptClassifier
from promptboost.model.prediction import FIELDS, Prediction
from promptboost.progress import Progress, no_progress
from promptboost.run.predict import open_classifier, predictions
from promptboost.run.run_folder import RunFolder

_LINES, _TABLE = (".jsonl", ".ndjson"), ".parquet"
# What a run answers with; its figures, its report and its images stay where they are.
_TEXTS = ("ensemble.json", "residual.json", "run.toml")


class Answering(msgspec.Struct, frozen=True, kw_only=True):
    """How to predict; see :func:`~promptboost.run.predict.open_classifier`."""

    encoders: list[str] = []
    average: bool = False
    text_only: bool = False
    device: str | None = None
    allow_download: bool = False
    top_k: int = 1
    min_probability: float | None = None

    def open(self, run: Path) -> PromptClassifier:
        """Load a run without the store, whose content would change which images are encoded together."""
        return open_classifier(
            run,
            encoder=self.encoders or None,
            average=self.average,
            text_only=self.text_only,
            cache=False,
            device=self.device,
            allow_download=self.allow_download,
        )


class AnswerShardWorker:
    """Predicts the images of shards; the run and its encoders are loaded once."""

    def __init__(self, out: str, run: str, how: dict[str, Any]) -> None:
        self._storage, self._how = Storage(out), msgspec.convert(how, Answering)
        with tempfile.TemporaryDirectory(prefix="promptboost-") as folder:
            for name in self._storage.names(run):
                (Path(folder) / name).write_bytes(self._storage.read(f"{run}/{name}"))
            self._classifier = self._how.open(Path(folder))
            _ = self._classifier.heads  # read while their files exist

    def do(self, order: dict[str, Any]) -> Result:
        """Predict one shard: one line of JSON per image."""
        items, lost = read_list(self._storage, order), order.get("lost", {})
        try:
            answers = list(self._predictions(open_images(items, lost=lost)))
        except MemoryError:
            raise
        except Exception as error:
            answers = self._one_by_one(items, lost, error)
        return Result(b"".join(map(_line, answers)), len(answers))

    def items(self, order: dict[str, Any]) -> Iterator[str]:
        """Predict the images of a shard one by one and discard the results."""
        items, lost = read_list(self._storage, order), order.get("lost", {})
        return tried_one_by_one(items, lost, lambda image: list(self._predictions([image])))

    def _predictions(self, images: Any) -> Iterator[Prediction]:
        how = self._how
        return predictions(self._classifier, images, how.top_k, how.min_probability or 0.0)

    def _one_by_one(
        self, items: Sequence[ImageItem], lost: Mapping[str, str], error: Exception
    ) -> list[Prediction]:
        """Find the images that an encoder fails on; if it fails on a plain one, the fault is not theirs."""
        answers: list[Prediction] = []
        for image in open_images(items, lost=lost):
            try:
                answers += self._predictions([image])
            except Exception as fault:
                name = image.path if isinstance(image, BadImage) else image.id
                error_text = str(fault) or type(fault).__name__
                answers.append(Prediction(image=name, error=error_text))
        if all(answer.error is not None for answer in answers):
            with raising(error):
                list(self._predictions([plain_image()]))
        return answers


def _line(prediction: Prediction) -> bytes:
    return prediction.to_json().encode() + b"\n"


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
    """Predict images in shards, and write all predictions into one file.

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
    counts = {"images": 0, "errors": 0}

    def shards() -> Iterator[list[Prediction]]:
        decoder = msgspec.json.Decoder(Prediction)
        for content in plan.results():
            shard = decoder.decode_lines(content)
            counts["images"] += len(shard)
            counts["errors"] += sum(prediction.error is not None for prediction in shard)
            yield shard

    write_predictions(output, FIELDS, shards())
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


def write_predictions(
    output: str, columns: Sequence[str], batches: Iterable[Sequence[Prediction]]
) -> None:
    """Write a JSON lines or Parquet file atomically, batch by batch; `columns` are those of Parquet."""
    with _whole(output) as file:
        if Path(output).suffix.lower() != _TABLE:
            with file.open("wb") as stream:
                for batch in batches:
                    stream.writelines(map(_line, batch))
            return
        arrow, parquet = _parquet()
        schema = arrow.schema([(name, _kind(arrow, name)) for name in columns])
        with parquet.ParquetWriter(file, schema) as writer:
            for batch in batches:
                records = [prediction.record() for prediction in batch]
                writer.write_table(arrow.Table.from_pylist(records, schema=schema))


def _kind(arrow: Any, column: str) -> Any:
    choice = [("class", arrow.string()), ("probability", arrow.float64())]
    kinds = {
        "probability": arrow.float64(),
        "unsure": arrow.bool_(),
        "top": arrow.list_(arrow.struct(choice)),
    }
    return kinds.get(column, arrow.string())


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

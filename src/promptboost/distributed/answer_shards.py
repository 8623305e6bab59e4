"""Predict many images in shards, with many processes, into one JSON lines or Parquet file."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from promptboost.distributed.engine import Job, Placement, Say, UnitResult, unit_name
from promptboost.distributed.images import import_parquet, list_items, open_images
from promptboost.distributed.shards import SHARD_IMAGES, cut, map_shards, read_list
from promptboost.distributed.storage import Storage, is_url, open_url, reaching
from promptboost.errors import DataError, SettingError
from promptboost.io import json_text, read_bytes, replacing
from promptboost.model.classifier import PromptClassifier
from promptboost.model.prediction import FIELDS, Prediction
from promptboost.progress import Progress, no_progress
from promptboost.run.predict import open_classifier, predictions
from promptboost.run.run_folder import RunFolder

_LINES, _TABLE = (".jsonl", ".ndjson"), ".parquet"
# The files of a run that predictions depend on, besides its heads.
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
        """Open a run without the store, whose content would change which images are encoded together."""
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

    def do(self, order: dict[str, Any]) -> UnitResult:
        """Predict one shard: one line of JSON per image."""
        images = open_images(read_list(self._storage, order))
        threshold = self._how.min_probability or 0.0
        answers = list(predictions(self._classifier, images, self._how.top_k, threshold))
        return UnitResult(b"".join(map(_line, answers)), len(answers))


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
        The run; the files needed for predictions are copied into the storage, for workers elsewhere.
    images : sequence of str
        Folders, images, manifests, Parquet files and tars, by path or URL.
    output : str
        A file or URL that ends in ``.jsonl`` or ``.parquet``. It has one line per image, in the order of
        the listing, whatever the placement.
    how : Answering
    place : Placement
        By default the shards are kept next to the output, and deleted once it is written.
    progress : callable, optional
    say : callable, optional
        Called with a line for people now and then.
    """
    check_output(output)
    how.open(run)  # errors are found here, not by every worker
    out = place.storage or f"{output}.shards"
    out = out if is_url(out) else os.path.abspath(out)
    copied = _copy_run(run, Storage(out), write=not place.merge)
    settings = {"out": out, "run": copied, "how": msgspec.to_builtins(how)}
    size = place.per_shard or SHARD_IMAGES
    sources = list(dict.fromkeys(images))
    plan = map_shards(
        cut(list_items(sources, table_rows=size), size),
        Job(f"{__name__}:AnswerShardWorker", settings, out, device=how.device),
        [copied, json_text(msgspec.to_builtins(msgspec.structs.replace(how, device=None)))],
        place,
        of="images",
        ending=".answers.jsonl",
        title="predicting",
        progress=progress,
        say=say,
    )
    share = place.share
    if not plan.units and share is None:
        raise DataError(f"there are no images in {', '.join(map(str, images))}")
    record: dict[str, Any] = {
        "run": str(run),
        "output": output,
        "storage": out,
        "shards": len(plan.units),
        "new_shards": plan.new,
        "share": None if share is None else str(share),
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
    """Copy the files for predictions into the storage, under a digest of them; return their folder."""
    folder = RunFolder(run)

    def read() -> dict[str, bytes]:
        texts = [run / name for name in _TEXTS if (run / name).is_file()]
        heads = sorted(run.glob("head*.safetensors"))
        return {file.name: read_bytes(file) for file in [*texts, *heads]}

    files = folder.steady(read)
    copied = "runs/" + unit_name(itertools.chain(*files.items()), "")
    existing = set(storage.names(copied))
    for name, content in files.items():
        if write and name not in existing:
            storage.write(f"{copied}/{name}", content)
    return copied


def check_output(output: str) -> None:
    """Raise SettingError for a file that predictions cannot be written to."""
    ending = Path(output).suffix.lower()
    if ending not in (*_LINES, _TABLE):
        raise SettingError(
            f"{output} ends in {ending or 'nothing'}; give a file that ends in .jsonl or .parquet"
        )
    if ending == _TABLE:
        import_parquet()


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
        arrow, parquet = import_parquet()
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


@contextmanager
def _whole(output: str) -> Iterator[Path]:
    """Write an output file or URL atomically."""
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

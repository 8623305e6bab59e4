"""Prediction of many images in shards, into one JSON Lines or Parquet file; evaluation in shards."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import msgspec
import numpy as np

from promptboost.data import Dataset, LabeledImage
from promptboost.data.decode import BadImage
from promptboost.data.manifest import MANIFEST_ENDINGS
from promptboost.data.source import without_bad
from promptboost.distributed.engine import (
    Job,
    Placement,
    Say,
    ShardPlan,
    map_shards,
    read_shard,
    unit_name,
)
from promptboost.distributed.images import (
    SHARD_IMAGES,
    ImageItem,
    cut,
    import_parquet,
    list_items,
    open_images,
)
from promptboost.distributed.shard_embeddings import EmbeddedShard, map_images, shard_storage
from promptboost.distributed.storage import Storage, is_url, open_url, reaching
from promptboost.encoders.base import UnitRows
from promptboost.errors import DataError, SettingError
from promptboost.io import json_text, read_bytes, replacing
from promptboost.model.prediction import FIELDS, RULE_FIELDS, Prediction
from promptboost.progress import Progress, no_progress
from promptboost.run.evaluate import Write, evaluate_images, open_run, with_classes
from promptboost.run.predict import LoadOptions, open_classifier, predictions
from promptboost.run.run_folder import RunFolder

_LINES, _TABLE = (".jsonl", ".ndjson"), ".parquet"
# The files of a run that predictions depend on, besides the heads.
_TEXTS = ("ensemble.json", "residual.json", "run.toml")


class AnswerShardWorker:
    """Predicts the images of shards; the run is loaded once."""

    def __init__(
        self, out: str, run: str, top_k: int, rules: dict[str, Any], options: LoadOptions
    ) -> None:
        storage, self._top_k, self._rules = Storage(out), top_k, rules
        with tempfile.TemporaryDirectory(prefix="promptboost-") as folder:
            for name in storage.names(run):
                (Path(folder) / name).write_bytes(storage.read(f"{run}/{name}"))
            self._classifier = open_classifier(Path(folder), **options)
            _ = self._classifier.heads  # loaded before the folder is deleted

    def do(self, order: bytes) -> bytes:
        """Predict one shard: one line of JSON per image."""
        images = open_images(read_shard(order, ImageItem))
        answers = predictions(self._classifier, images, self._top_k, **self._rules)
        return b"".join(map(_line, answers))


def _line(prediction: Prediction) -> bytes:
    return prediction.to_json().encode() + b"\n"


def predict_in_shards(
    run: Path,
    images: Sequence[str],
    output: str,
    placement: Placement,
    *,
    top_k: int = 1,
    rules: dict[str, Any] | None = None,
    progress: Progress = no_progress,
    say: Say = lambda _: None,
    **options: Unpack[LoadOptions],
) -> dict[str, Any]:
    """Predict images in shards, and write all predictions into one file; return a summary.

    Class priors need all images at once: then there are no shards, and `placement` is not used.
    The files of the run are copied into the storage for the workers. `images` are folders, images,
    manifests, Parquet files and tars, by path or URL; `output` is a file or URL that ends in ``.jsonl`` or
    ``.parquet``, with one line per image in the order of the listing. By default, the shards are next to it
    and are deleted once it is written. `rules` are those of
    :func:`~promptboost.run.predict.predictions`. `say` is called with status messages.
    """
    check_output(output)
    rules, sources = rules or {}, list(dict.fromkeys(images))
    columns = [*FIELDS, *(field for rule, field in RULE_FIELDS.items() if rule in rules)]
    record: dict[str, Any] = {"run": str(run), "output": output, "share": None}
    counts = {"images": 0, "errors": 0}
    nothing = f"there are no images in {', '.join(map(str, images))}"

    def counted(batches: Iterable[list[Prediction]]) -> Iterator[list[Prediction]]:
        for batch in batches:
            counts["images"] += len(batch)
            counts["errors"] += sum(prediction.error is not None for prediction in batch)
            yield batch

    if "class_priors" in rules:
        read = open_images(list_items(sources))
        classifier = open_classifier(run, progress=progress, **options)
        answers = list(predictions(classifier, read, top_k, say=say, **rules))
        if not answers:
            raise DataError(nothing)
        write_predictions(output, columns, counted([answers]))
        return {**record, **counts, "changed": sum(answer.changed for answer in answers)}
    # The content of the store affects which images are encoded together.
    options = {**options, "cache": False}
    # Raise errors here rather than in every worker.
    _ = list(predictions(open_classifier(run, **options), [], **rules))
    out = placement.storage or f"{output}.shards"
    out = out if is_url(out) else os.path.abspath(out)
    copied = _copy_run(run, Storage(out), write=not placement.merge)
    how = {"top_k": top_k, "rules": rules}
    settings = {"out": out, "run": copied, **how, "options": options}
    size = placement.per_shard or SHARD_IMAGES
    plan = map_shards(
        cut(list_items(sources, table_rows=size), size),
        Job(f"{__name__}:AnswerShardWorker", settings, out, device=options.get("device")),
        [copied, json_text(sorted({**how, **options, "device": None}.items()))],
        placement,
        of="images",
        ending=".answers.jsonl",
        title="predicting",
        progress=progress,
        say=say,
    )
    share = placement.share
    if not plan.units and share is None:
        raise DataError(nothing)
    record |= {
        "storage": out,
        "shards": len(plan.units),
        "new_shards": plan.new,
        "share": None if share is None else str(share),
    }
    if share is not None:
        return record
    decoder = msgspec.json.Decoder(Prediction)
    write_predictions(output, columns, counted(map(decoder.decode_lines, plan.results())))
    if placement.storage is None:
        _remove(out)
    return {**record, **counts}


def _copy_run(run: Path, storage: Storage, *, write: bool) -> str:
    """Copy the files for predictions into a folder of the storage named by their digest; return it."""
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
    """Raise SettingError for an output file of unknown type."""
    ending = Path(output).suffix.lower()
    if ending not in (*_LINES, _TABLE):
        raise SettingError(
            f"{output} ends in {ending or 'nothing'}; give a file that ends in .jsonl or .parquet; "
            "--format csv prints CSV"
        )
    if ending == _TABLE:
        import_parquet()


def write_predictions(
    output: str, columns: Sequence[str], batches: Iterable[Sequence[Prediction]]
) -> None:
    """Write a JSON Lines or Parquet file atomically, batch by batch; `columns` apply to Parquet."""
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
        "rejected": arrow.bool_(),
        "prediction_set": arrow.list_(arrow.string()),
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


def evaluate_in_shards(
    run: Path,
    source: str,
    placement: Placement,
    *,
    min_probability: float | None = None,
    write: Write | None = None,
    progress: Progress = no_progress,
    say: Say = lambda _: None,
    **options: Unpack[LoadOptions],
) -> dict[str, Any]:
    """Evaluate a run on labeled images that are read and embedded in shards, without the store.

    The results are those of :func:`~promptboost.run.evaluate.evaluate_run`. A share of the work returns a
    summary of its shards. `say` is called with status messages.
    """
    folder, classifier = open_run(run, min_probability, progress, **options)
    plans = [
        map_images(source, embedder, placement, labeled=True, progress=progress, say=say)
        for embedder in classifier.embedders
    ]
    if placement.share is not None:
        shards = sum(len(plan.units) for plan in plans)
        storage = shard_storage(placement)
        return {"share": str(placement.share), "shards": shards, "storage": storage}
    data, position, rows = _read_embedded(source, plans)
    measured = data.of_split("test") if "test" in data.splits else data
    measured = with_classes(measured, classifier.class_names)
    matrices = [matrix[[position[image.id] for image in measured.images]] for matrix in rows]
    return evaluate_images(
        folder, classifier, measured, matrices, min_probability, write=write, progress=progress
    )


def _read_embedded(
    source: str, plans: Sequence[ShardPlan]
) -> tuple[Dataset, dict[str, int], list[UnitRows]]:
    """Return the readable images, the row of each, and the embeddings by each encoder."""
    first, *others = ([EmbeddedShard.from_bytes(c) for c in plan.results()] for plan in plans)
    lists = [[image for shard in shards for image in shard.images] for shards in (first, *others)]
    if len({tuple(image.name for image in images) for images in lists}) > 1:
        raise DataError(f"the images of {source} changed while they were read; run it again")
    # An image that one of several encoders could not embed has no prediction.
    listed = [
        next((image for image in same if image.problem), same[0])
        for same in zip(*lists, strict=True)
    ]
    digests = np.concatenate([shard.digests for shard in first])
    thumbnails = np.concatenate([s.thumbnails for s in first if s.thumbnails is not None])
    images, unreadable, listing_bad = [], [], []
    for index, image in enumerate(listed):
        path = _path(source, image.name)
        if image.problem and not image.label:
            listing_bad.append(BadImage(image.name, image.problem))
            continue
        if not image.label:
            raise DataError(f"{image.name} has no label")
        labeled = LabeledImage(image.name, image.label, path or b"", image.split or None)
        if image.problem:
            unreadable.append(BadImage(labeled.name, image.problem))
        small = None if image.no_thumbnail else thumbnails[index].tobytes()
        images.append(labeled.with_known(digests[index].tobytes(), small))
    listing = Dataset.unchecked(images, listing_bad)
    data = without_bad(listing, unreadable, "skip")
    rows = [np.concatenate([shard.rows[:, 0] for shard in shards]) for shards in (first, *others)]
    return data, {image.name: i for i, image in enumerate(listed)}, rows


def _path(source: str, name: str) -> Path | None:
    """Return the path of a local image; None for one at a URL or inside a file."""
    if is_url(source):
        return None
    path = Path(source)
    if path.is_dir():
        return path / name
    return path.parent / name if path.suffix.lower() in MANIFEST_ENDINGS else None

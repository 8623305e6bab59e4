"""Cells of an experiment: results in a file each, so that it can be interrupted and resumed."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from promptboost.baselines import Count, Positive, Share
from promptboost.config import DEFAULT_ENCODER, FitConfig
from promptboost.distributed.engine import Engine, Job, Placement, Say, Worker, WorkUnit, unit_name
from promptboost.distributed.storage import Storage
from promptboost.errors import FileFormatError, RunError, SettingError, count
from promptboost.io import (
    is_ours,
    json_text,
    load_json,
    read_bytes,
    read_text,
    write_json,
    write_text,
)
from promptboost.progress import Progress, no_progress, stage

Key = Mapping[str, str | int | float]
Result = dict[str, Any]


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a comparison, with its key."""

    method: str
    encoder: str
    on: str
    code: str  # version and digest of the code that made it
    shots: Count
    seed: Count
    seconds: Positive | None = None
    accuracy: Share
    class_accuracy: Share | None = None
    learn_accuracy: Share | None = None
    log_loss: Positive | None = None
    expected_calibration_error: Share | None = None
    unseen_accuracy: Share | None = None
    leaked_images: Count = 0
    text_accuracy: Share | None = None  # without the residual
    prompts: Positive | None = None
    fit_s: Positive | None = None
    predict_ms: Positive | None = None
    via: Literal["", "text", "emulated", "refit"]
    image_passes: Count = 1


class _Entry(msgspec.Struct, frozen=True):
    key: dict[str, str | int | float]
    results: list[dict[str, Any]]
    times: dict[str, float | None] = {}


class ResultLog:
    """Results of one experiment: a file for each key in ``cells/``, and all of them in ``cells.jsonl``.

    ``cells.jsonl`` is written from the files, sorted by key and without times, so that it is the same
    wherever the work was done. Results that only it has are read, too. `line` is the schema of a result:
    invalid ones are computed again. `about` are inputs of all results; file names depend on them.
    """

    def __init__(
        self,
        path: Path,
        line: type[msgspec.Struct] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._path, self._line, self._about = path, line, dict(about or {})
        self.storage = Storage(str(path.with_suffix("")))
        self._found: dict[str, Result] = {}
        self._bad: list[str] = []
        for name in sorted(self.storage.names()):
            if name.endswith(".json") and not self.take(name):
                self._bad.append(name)
        content = read_bytes(path) if path.exists() else b""
        lines = filter(bytes.strip, content.split(b"\n"))
        self.damaged = len(self._bad) + sum(not self._add(line, path.name) for line in lines)

    def __contains__(self, key: Key) -> bool:
        return _name(key) in self._found

    def __iter__(self) -> Iterator[Key]:
        return (entry["key"] for entry in self._found.values())

    def name(self, key: Key) -> str:
        """Return the file name of a key."""
        about = json.dumps(self._about, sort_keys=True)
        return unit_name(["cell", about, _name(key)], ".json")

    def take(self, name: str) -> bool:
        """Read a file of results; return whether it is valid."""
        try:
            content = self.storage.read(name)
        except OSError:
            return False
        return self._add(content, name)

    def drop_damaged(self, say: Say) -> None:
        """Remove damaged files, so that their results are computed again."""
        if self.damaged:
            damaged = count(self.damaged, "damaged cell")
            say(f"ignored {damaged} in {self._path.parent}: missing results are computed again")
        for name in self._bad:
            self.storage.remove(name)

    def results(self, keys: Iterable[Key]) -> list[Result]:
        """Return the available results of these keys, each with its key."""
        entries = (self._found[_name(key)] for key in keys if key in self)
        return [line for entry in entries for line in _lines(entry)]

    def write(self) -> None:
        """Write all results into one file."""
        entries = (self._found[name] for name in sorted(self._found))
        lines = [
            json.dumps({"key": entry["key"], "results": entry["results"]}, allow_nan=False) + "\n"
            for entry in entries
        ]
        if lines:
            write_text(self._path, "".join(lines), follow=False)

    def _add(self, text: bytes, where: str) -> bool:
        """Add an entry if it is new; return whether it is valid."""
        try:
            entry = msgspec.to_builtins(
                msgspec.convert(load_json(text.decode("utf-8"), where), _Entry)
            )
            for line in _lines(entry) if self._line is not None else ():
                msgspec.convert(line, self._line)
        except ValueError:
            return False
        self._found.setdefault(_name(entry["key"]), entry)
        return True


class CellRunner:
    """Measures missing cells in this process or on a cluster.

    Processes start with the first cell and stay until :meth:`close`.
    """

    def __init__(self, placement: Placement, say: Say) -> None:
        self._placement, self._say = placement, say
        self._engine: Engine | None = None

    def run(
        self,
        log: ResultLog,
        job: Job,
        units: Sequence[WorkUnit],
        worker: Worker,
        title: str,
        progress: Progress,
    ) -> Iterator[tuple[str, str]]:
        """Run work units and read their results; yield the name of each that failed, and why."""
        if not units:
            return
        with stage(progress, title, len(units)) as advance:
            self._engine = self._engine or self._placement.engine(self._say)
            done = job.done()
            missing = (unit for unit in units if unit.name not in done)
            for receipt in self._engine.carry_out(job, missing, worker):
                advance()
                if receipt.problem is not None:
                    yield receipt.name, receipt.problem
                elif not log.take(receipt.name):
                    yield receipt.name, "its file cannot be read"

    def close(self) -> None:
        """End the processes that were started."""
        if self._engine is not None:
            self._engine.close()


def cell_file(key: Key, results: Sequence[Result], times: Mapping[str, float | None]) -> bytes:
    """Return the content of the file of a key, with times apart from reproducible results."""
    entry = {"key": dict(key), "results": list(results), "times": dict(times)}
    return json_text(entry).encode()


def _lines(entry: Mapping[str, Any]) -> list[Result]:
    """Return each result of an entry with its key, which overrides fields of the result."""
    whole = {"seconds": None, **entry["times"], **entry["key"]}
    return [{**whole, **result, **whole} for result in entry["results"]]


def _name(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)


#: Methods that fit within seconds.
DEFAULT_METHODS = (
    "zero-shot",
    "template-mean",
    "pool-mean",
    "logistic",
    "tip-adapter",
    "tip-adapter-f",
    "promptboost",
)


@dataclass(frozen=True)
class CompareRequest:
    """Settings of a comparison."""

    source: str
    out: Path  # results that it has are not computed again
    methods: tuple[str, ...] = DEFAULT_METHODS  # "all": all that can be used here
    shots: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: tuple[int, ...] = (1, 2, 3)
    encoder: str = DEFAULT_ENCODER  # of the fit
    transfers: tuple[str, ...] = ()  # encoders to transfer to
    words: FitConfig = field(default_factory=FitConfig)  # only its settings of pool and views
    cache: bool = True
    progress: Progress = no_progress
    device: str | None = None
    uneven: bool = False  # classes have 1 to `shots` images, see data.shots.uneven_classes

    def __post_init__(self) -> None:
        for name in ("methods", "shots", "seeds"):
            values = getattr(self, name)
            if not values:
                raise SettingError(f"{name} is empty: give one or more")
        for name in ("methods", "shots", "seeds", "transfers"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise SettingError(f"{name} names something twice: {', '.join(map(str, values))}")
        for shots in self.shots:
            if shots < 1:
                raise SettingError(f"shots is {shots}, but must be 1 or more")
        if self.encoder in self.transfers:
            raise SettingError(
                f"{self.encoder} is the encoder to learn with; --transfer is for another one"
            )

    def settings(self) -> dict[str, Any]:
        """Return JSON-serializable settings for another process."""
        parts = dataclasses.asdict(dataclasses.replace(self, progress=no_progress))
        del parts["progress"]
        return {**parts, "out": str(self.out.absolute())}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "CompareRequest":
        """Make a request from :meth:`settings`."""
        parts: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()
        }
        parts |= {"out": Path(parts["out"]), "words": FitConfig(**parts["words"])}
        return cls(**parts)


def check_folder(out: Path, content: str, *names: str) -> None:
    """Raise a RunError if a path is not a folder, or has anything but content known by these names."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is not a folder; choose another name with -o")
    strange = out.exists() and any(not is_ours(file.name) for file in out.iterdir())
    if strange and not any((out / name).exists() for name in names):
        raise RunError(f"{out} is not empty and holds no {content}; choose another folder with -o")


def check_same(
    out: Path, about: Mapping[str, Any], targets: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Record the inputs of a folder of results; raise a RunError if it has others.

    `targets` are the fingerprints of the target encoders, by name; more may be added later.
    """
    file = out / "compare.json"
    if not file.exists():
        check_folder(out, "comparison", file.name)
        write_json(file, {**about, "targets": dict(targets)}, follow=False)
        return
    recorded = load_json(read_text(file, error=FileFormatError), str(file))
    if not isinstance(recorded, dict) or not isinstance(recorded.get("targets", {}), dict):
        raise FileFormatError(
            f"{file}: must be an object; choose another folder, or remove that one"
        )
    weights = {**targets, **recorded.get("targets", {})}
    changed = [name for name in about if recorded.get(name) != about[name]]
    changed += [f"weights of {name}" for name in targets if weights[name] != targets[name]]
    if changed:
        raise RunError(
            f"the results in {out} were made with other {' and '.join(changed)}; choose another folder "
            "with -o, or remove that one"
        )
    if weights != recorded.get("targets"):
        write_json(file, {**recorded, "targets": weights}, follow=False)
    say(f"resuming with the results in {out}")

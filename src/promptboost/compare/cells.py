"""Cells of an experiment: computed once, a file each, so that it can be stopped and goes on."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from promptboost.baselines.measures import Count, Positive, Share
from promptboost.config import DEFAULT_ENCODER, FitConfig
from promptboost.distributed.engine import Engine, Placement, Say, run_units
from promptboost.distributed.storage import Storage
from promptboost.distributed.unit import Job, Receipt, Worker, WorkUnit, unit_name
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
    """One result of a comparison, with the key it is kept under: what a table needs."""

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

    In the end ``cells.jsonl`` is written from the files, in the order of the keys and without times: the
    same bytes wherever the work was done. Results of which only that file is left count, too.

    Parameters
    ----------
    path : Path
        Of ``cells.jsonl``; the folder next to it has the same name without the suffix.
    line : type, optional
        What each result is checked to be. One that cannot be read is computed again.
    about : mapping, optional
        What all results depend on besides their keys; file names depend on both.
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
        self._files: set[str] = set()
        self._bad: list[str] = []
        self.damaged = 0
        for name in sorted(self.storage.names()):
            if name.endswith(".json") and not self.take(name):
                self._bad.append(name)
        content = read_bytes(path) if path.exists() else b""
        for text in filter(bytes.strip, content.split(b"\n")):
            self._add(text, "", path.name)
        self.damaged += len(self._bad)

    def __contains__(self, key: Key) -> bool:
        return _name(key) in self._found

    def __iter__(self) -> Iterator[Key]:
        return (entry["key"] for entry in self._found.values())

    def name(self, key: Key) -> str:
        """Return the name of the file of a key, made of all that its results depend on."""
        about = json.dumps(self._about, sort_keys=True)
        return unit_name(["cell", about, _name(key)], ".json")

    def take(self, name: str) -> bool:
        """Read a file that was written by now; return whether it is whole."""
        try:
            content = self.storage.read(name)
        except OSError:
            return False
        return self._add(content, name, name)

    def drop_damaged(self, say: Say) -> None:
        """Remove files that cannot be read, so that their results are made again."""
        if self.damaged:
            damaged = count(self.damaged, "damaged cell")
            say(f"{damaged} in {self._path.parent} left aside: what is not there is done again")
        for name in self._bad:
            self.storage.remove(name)

    def keep(self, key: Key, results: list[Result], seconds: float) -> None:
        """Add the results of a key, on disk before anything else is done."""
        name = self.name(key)
        self.storage.write(name, cell_file(key, results, {"seconds": round(seconds, 3)}))
        self.take(name)

    def results(self, keys: Iterable[Key]) -> list[Result]:
        """Return what is there of these keys, each result with its key."""
        entries = (self._found[_name(key)] for key in keys if key in self)
        return [line for entry in entries for line in _lines(entry)]

    def fill(
        self,
        keys: Iterable[Key],
        work: Callable[[Key], list[Result]],
        progress: Progress = no_progress,
    ) -> list[Result]:
        """Do what is not there yet, and return all results of these keys.

        ``work`` gives the results of one key, for example one for each number of rounds.
        """
        wanted = list(keys)
        missing = [key for key in wanted if key not in self]
        with stage(progress, self._path.stem, len(missing)) as advance:
            for key in missing:
                start = time.perf_counter()
                results = work(key)
                self.keep(key, results, time.perf_counter() - start)
                advance()
        self.write()
        return self.results(wanted)

    def write(self) -> None:
        """Write all results into one file; those that had no file of their own get one first."""
        for name, entry in self._found.items():
            if name not in self._files:
                self.storage.write(self.name(entry["key"]), cell_file(**entry))
                self._files.add(name)
        entries = (self._found[name] for name in sorted(self._found))
        lines = [
            json.dumps({"key": entry["key"], "results": entry["results"]}, allow_nan=False) + "\n"
            for entry in entries
        ]
        if lines:
            write_text(self._path, "".join(lines), follow=False)

    def _add(self, text: bytes, file: str, where: str) -> bool:
        """Add an entry if it is new; return whether it can be read."""
        try:
            entry = msgspec.to_builtins(
                msgspec.convert(load_json(text.decode("utf-8"), where), _Entry)
            )
            for line in _lines(entry) if self._line is not None else ():
                msgspec.convert(line, self._line)
        except ValueError:
            self.damaged += not file  # cut off when the program was, or not ours
            return False
        name = _name(entry["key"])
        self._found.setdefault(name, entry)
        if file:
            self._files.add(name)
        return True


class CellRunner:
    """Measures missing cells in this process or on a cluster.

    Processes start with the first cell and stay until :meth:`close`.
    """

    def __init__(self, place: Placement, say: Say) -> None:
        self._place, self._say = place, say
        self._engine: Engine | None = None

    def run(
        self,
        log: ResultLog,
        job: Job,
        units: Sequence[WorkUnit],
        worker: Worker,
        title: str,
        progress: Progress,
        failed: Callable[[str, str], None],
    ) -> None:
        """Carry out units and read their results; `failed` is called with a name and the reason."""
        if not units:
            return
        with stage(progress, title, len(units)) as advance:

            def note(receipt: Receipt) -> None:
                problem = receipt.problem
                if problem is None and not log.take(receipt.name):
                    problem = "its file cannot be read"
                if problem is not None:
                    failed(receipt.name, problem)

            self._engine = self._engine or self._place.engine(self._say)
            run_units(self._engine, job, units, advance=advance, worker=worker, each=note)

    def close(self) -> None:
        """End the processes that were started."""
        if self._engine is not None:
            self._engine.close()


def cell_file(key: Key, results: Sequence[Result], times: Mapping[str, float | None]) -> bytes:
    """Return the content of the file of a key; times stand apart from what does not change."""
    entry = {"key": dict(key), "results": list(results), "times": dict(times)}
    return json_text(entry).encode()


def _lines(entry: Mapping[str, Any]) -> list[Result]:
    """Return each result of an entry with its key; what a result says of the key does not count."""
    whole = {"seconds": None, **entry["times"], **entry["key"]}
    return [{**whole, **result, **whole} for result in entry["results"]]


def _name(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)


#: Methods that take seconds.
DEFAULT_METHODS = (
    "zero-shot",
    "zero-shot-80",
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
    out: Path  # what is there is not computed again
    methods: tuple[str, ...] = DEFAULT_METHODS  # "all": those named and all that can be used here
    shots: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: tuple[int, ...] = (1, 2, 3)
    encoder: str = DEFAULT_ENCODER  # to learn with
    transfers: tuple[str, ...] = ()  # encoders to carry what was learned to
    words: FitConfig = field(default_factory=FitConfig)  # only what is about words and views
    cache: bool = True
    progress: Progress = no_progress
    device: str | None = None
    refit: bool = True  # methods that do not carry over learn again on the other encoders
    timed: bool = True  # measure how long an image takes from file to answer

    def __post_init__(self) -> None:
        for name in ("methods", "shots", "seeds"):
            values = getattr(self, name)
            if not values:
                raise SettingError(f"{name} is empty: give one or more")
        for name in ("methods", "shots", "seeds", "transfers"):
            values = getattr(self, name)
            # Counted twice, it would weigh double in means and deviations.
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
        """Make it again of what :meth:`settings` returned."""
        parts: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()
        }
        parts |= {"out": Path(parts["out"]), "words": FitConfig(**parts["words"])}
        return cls(**parts)


def check_comparison(out: Path) -> None:
    """Raise if a folder holds anything but a comparison."""
    strange = out.exists() and any(not is_ours(file.name) for file in out.iterdir())
    if strange and not (out / "compare.json").exists():
        raise RunError(f"{out} is not empty and holds no comparison; choose another folder")


def check_same(
    out: Path, about: Mapping[str, Any], targets: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Remember what a folder of results is about; raise if it is about something else.

    `targets` are the fingerprints of encoders to carry to, by name; others may come later.
    """
    file = out / "compare.json"
    if not file.exists():
        check_comparison(out)
        write_json(file, {**about, "targets": dict(targets)}, follow=False)
        return
    before = load_json(read_text(file, error=FileFormatError), str(file))
    if not isinstance(before, dict):
        raise FileFormatError(
            f"{file}: must be an object; choose another folder, or remove that one"
        )
    known = before.get("targets")
    known = known if isinstance(known, dict) else {}
    changed = [name for name in about if before.get(name) != about[name]]
    changed += [
        f"weights of {name}" for name in targets if known.get(name, targets[name]) != targets[name]
    ]
    if changed:
        raise RunError(
            f"the results in {out} were made with other {' and '.join(changed)}; choose another folder "
            "with -o, or remove that one"
        )
    if not targets.keys() <= known.keys():
        write_json(file, {**before, "targets": {**known, **targets}}, follow=False)
    say(f"going on with the results in {out}")

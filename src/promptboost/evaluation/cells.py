"""Cells of an experiment: computed once, kept one a line, so that it can be stopped and goes on."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from promptboost.config import DEFAULT_ENCODER, FitConfig
from promptboost.errors import FileFormatError, RunError, SettingError
from promptboost.evaluation.measures import Count, Positive, Share
from promptboost.files import append_bytes, load_json, read_bytes, read_text, write_json
from promptboost.folders import is_ours

Key = Mapping[str, str | int | float]
Result = dict[str, Any]


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a comparison, with the key it is kept under: what a table needs."""

    method: str
    encoder: str
    on: str
    shots: Count
    seed: Count
    seconds: Positive
    accuracy: Share
    class_accuracy: Share | None = None
    learn_accuracy: Share | None = None
    unseen_accuracy: Share | None = None
    leaked_images: Count = 0
    prompts: Positive | None = None
    fit_s: Positive
    predict_ms: Positive | None
    via: Literal["", "text", "emulated", "refit"]
    image_passes: Count = 1


class _Entry(msgspec.Struct, frozen=True):
    key: dict[str, str | int | float]
    results: list[dict[str, Any]]
    seconds: Positive


class Notebook:
    """Results of one experiment, in a JSONL file; each is checked to be a `line`, where that is given.

    A result that cannot be read was cut off when the program was, or altered: it is computed again.
    """

    def __init__(self, path: Path, line: type[msgspec.Struct] | None = None) -> None:
        self._path = path
        self._found: dict[str, Result] = {}
        self.damaged = 0
        content = read_bytes(path) if path.exists() else b""
        for text in filter(bytes.strip, content.split(b"\n")):
            try:
                entry = msgspec.convert(load_json(text.decode("utf-8"), path.name), _Entry)
                whole = msgspec.to_builtins(entry)
                for one in _lines(whole) if line is not None else ():
                    msgspec.convert(one, line)
            except ValueError:
                self.damaged += 1  # cut off when the program was, or not ours
                continue
            self._found[_name(entry.key)] = whole

    def __contains__(self, key: Key) -> bool:
        return _name(key) in self._found

    def __iter__(self) -> Iterator[Key]:
        return (entry["key"] for entry in self._found.values())

    def keep(self, key: Key, results: list[Result], seconds: float) -> None:
        """Add the results of a key, on disk before anything else is done."""
        entry = {"key": dict(key), "results": results, "seconds": round(seconds, 3)}
        text = json.dumps(entry, allow_nan=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A torn line before this one must not swallow it.
        append_bytes(self._path, f"\n{text}".encode())
        self._found[_name(key)] = entry

    def results(self, keys: Iterable[Key]) -> list[Result]:
        """Return what is there of these keys, each result with its key."""
        entries = (self._found[_name(key)] for key in keys if key in self)
        return [line for entry in entries for line in _lines(entry)]

    def fill(self, keys: Iterable[Key], work: Callable[[Key], list[Result]]) -> list[Result]:
        """Do what is not there yet, and return all results of these keys.

        ``work`` gives the results of one key, for example one for each number of rounds.
        """
        from tqdm import tqdm

        wanted = list(keys)
        missing = [key for key in wanted if key not in self]
        for key in tqdm(missing, desc=self._path.stem, unit=" cells", leave=False, disable=None):
            start = time.perf_counter()
            results = work(key)
            self.keep(key, results, time.perf_counter() - start)
        return self.results(wanted)


def _lines(entry: Mapping[str, Any]) -> list[Result]:
    """Return each result of an entry with its key; what a result says of the key does not count."""
    whole = {**entry["key"], "seconds": entry["seconds"]}
    return [{**whole, **result, **whole} for result in entry["results"]]


def _name(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)


#: What takes seconds: the others are asked for by name.
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
    """A comparison as it is asked for."""

    source: str
    out: Path  # what is there is not computed again
    methods: tuple[str, ...] = DEFAULT_METHODS  # "all": those named and all that can be used here
    shots: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: tuple[int, ...] = (1, 2, 3)
    encoder: str = DEFAULT_ENCODER  # to learn with
    transfers: tuple[str, ...] = ()  # encoders to carry what was learnt to
    words: FitConfig = field(default_factory=FitConfig)  # only what is about words and views
    cache: bool = True
    progress: bool = True
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
        for count in self.shots:
            if count < 1:
                raise SettingError(f"shots is {count}, but must be 1 or more")
        if self.encoder in self.transfers:
            raise SettingError(
                f"{self.encoder} is the encoder to learn with; --transfer is for another one"
            )


def check_comparison(out: Path) -> None:
    """Raise if a folder holds something else than a comparison."""
    strange = out.exists() and any(not is_ours(file.name) for file in out.iterdir())
    if strange and not (out / "compare.json").exists():
        raise RunError(f"{out} is not empty and holds no comparison; choose another folder")


def check_same(out: Path, about: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Remember what a folder of results is about; raise if it is about something else."""
    file = out / "compare.json"
    if not file.exists():
        check_comparison(out)
        write_json(file, dict(about), follow=False)
        return
    before = load_json(read_text(file, error=FileFormatError), str(file))
    if not isinstance(before, dict):
        raise FileFormatError(
            f"{file}: must be an object; choose another folder, or remove that one"
        )
    before = {"images": before.get("pictures"), **before}  # as it was called at first
    changed = [name for name in about if before.get(name) != about[name]]
    if changed:
        raise RunError(
            f"the results in {out} were made with other {' and '.join(changed)}; choose another folder "
            "with -o, or remove that one"
        )
    say(f"going on with the results in {out}")

"""Cells of an experiment: computed once, kept one a line, so that it can be stopped and goes on."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Key", "Notebook", "Result"]

Key = Mapping[str, str | int | float]
Result = dict[str, Any]


class Notebook:
    """Results of one experiment, in a JSONL file.

    Parameters
    ----------
    path : Path
        The file; made with the first result.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     notebook = Notebook(Path(folder) / "squares.jsonl")
    ...     found = notebook.fill([{"n": 2}, {"n": 3}], lambda key: [{"square": key["n"] ** 2}])
    ...     again = Notebook(Path(folder) / "squares.jsonl")
    ...     {"n": 3} in again, [line["square"] for line in found]
    (True, [4, 9])
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Result] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                    whole = {name: entry[name] for name in ("key", "results", "seconds")}
                    self._found[_name(entry["key"])] = whole
                except (ValueError, KeyError, TypeError):
                    continue  # cut off when the program was

    def __contains__(self, key: Key) -> bool:
        return _name(key) in self._found

    def __iter__(self) -> Iterator[Key]:
        return (entry["key"] for entry in self._found.values())

    def keep(self, key: Key, results: list[Result], seconds: float) -> None:
        """Add the results of a key, on disk before anything else is done."""
        entry = {"key": dict(key), "results": results, "seconds": round(seconds, 3)}
        text = json.dumps(entry, allow_nan=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            # A torn line before this one must not swallow it.
            file.write("\n" + text)
        self._found[_name(key)] = entry

    def results(self, keys: Iterable[Key]) -> list[Result]:
        """Give what is there of these keys, each result with its key."""
        entries = (self._found[_name(key)] for key in keys if key in self)
        return [
            {**entry["key"], "seconds": entry["seconds"], **result}
            for entry in entries
            for result in entry["results"]
        ]

    def fill(self, keys: Iterable[Key], work: Callable[[Key], list[Result]]) -> list[Result]:
        """Do what is not there yet; give all results of these keys.

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


def _name(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)

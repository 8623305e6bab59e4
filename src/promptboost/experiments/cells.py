"""Cells of an experiment: computed once, kept one a line, so that it can be stopped and goes on."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

Key = Mapping[str, str | int | float]
Result = dict[str, Any]


class Notebook:
    """Results of one question, in a JSONL file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Result] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue  # cut off when the program was
                self._found[_name(entry["key"])] = entry

    def fill(self, keys: Iterable[Key], work: Callable[[Key], list[Result]]) -> list[Result]:
        """Do what is not there yet; give all results of these keys.

        ``work`` gives the results of one key, for example one for each number of rounds.
        """
        wanted = list(keys)
        missing = [key for key in wanted if _name(key) not in self._found]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for key in tqdm(missing, desc=self._path.stem, unit=" cells", leave=False):
            start = time.perf_counter()
            results = work(key)
            entry = {
                "key": dict(key),
                "results": results,
                "seconds": round(time.perf_counter() - start, 3),
            }
            self._found[_name(key)] = entry
            with self._path.open("a", encoding="utf-8") as file:
                # A torn line before this one must not swallow it.
                file.write("\n" + json.dumps(entry))
        return [
            {**entry["key"], "seconds": entry["seconds"], **result}
            for entry in (self._found[_name(key)] for key in wanted)
            for result in entry["results"]
        ]


def _name(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)

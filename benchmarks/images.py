"""The table of docs/results/accuracy.md for any labeled images: several shots and seeds, and transfer.

    python -m benchmarks.images DATA [--prompts FILE ...] [--shots 1 2 4 8] [--seeds 1 2 3]

Fits on conse:lite0, and up to 4 shots on conse:lite2 at once, moves the text there, and prints mean
accuracies in per cent; columns that begin with target are on the second encoder. Embeddings are kept in the
store, so it can be stopped and run again.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from promptboost.compare.demo import COLUMNS, run_demo
from promptboost.config import FitConfig
from promptboost.data import load_data
from promptboost.pool.pool import sentences_by_class


def merged_prompts(files: Sequence[str], data: str, folder: Path) -> str | None:
    """Put several files of sentences together, by class; None if there are none."""
    if not files:
        return None
    names = load_data(data, check=False).class_names
    together: dict[str, list[str]] = {name: [] for name in names}
    for file in files:
        raw = json.loads(Path(file).read_text())
        # Released files hold blank sentences, which promptboost would refuse.
        kept = {name: [s for s in lines if s.strip()] for name, lines in raw.items()}
        found, unused = sentences_by_class(names, kept)
        for name, sentences in found.items():
            together[name] += sentences
        print(f"{file}: {len(names) - len(found)} classes missing, {len(unused)} keys unused")
    path = folder / "prompts.json"
    path.write_text(json.dumps(together))
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--prompts", nargs="*", default=[])
    parser.add_argument("--shots", nargs="*", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        prompts = merged_prompts(options.prompts, options.data, Path(name))
        result = run_demo(
            Path(name) / "run",
            data=options.data,
            shots=options.shots,
            seeds=options.seeds,
            settings=FitConfig(prompts=prompts),
            say=print,
        )
    print("| shots | " + " | ".join(column.replace("_", " ") for column in COLUMNS) + " |")
    print("|" + "---|" * (len(COLUMNS) + 1))
    for row in result["rows"]:
        found = (row[column] for column in COLUMNS)
        cells = " | ".join("–" if share is None else f"{100 * share:.1f}" for share in found)
        print(f"| {row['shots']} | {cells} |")


if __name__ == "__main__":
    main()

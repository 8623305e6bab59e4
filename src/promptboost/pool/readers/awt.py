"""AWT: fifty and more whole sentences a class, for zero-shot and for few-shot use.

Class names have underscores, and blank sentences occur in most of the files. The files are named
after their dataset, so only a folder whose name begins with AWT tells them from a user's own.
"""

from pathlib import Path

from promptboost.pool.readers.mapping import read_mapping
from promptboost.pool.readers.source import Source

__all__ = ["KIND", "read", "recognises"]

KIND = "awt"


def recognises(path: Path) -> bool:
    """Say whether a JSON file lies where AWT has its descriptions.

    Examples
    --------
    >>> recognises(Path("AWT/AWT_zero_shot/descriptions/image_datasets/dtd.json"))
    True
    >>> recognises(Path("descriptions/dtd.json"))
    False
    """
    folders = path.resolve().parts[:-1]
    return path.suffix.lower() == ".json" and any(
        part == "AWT" or part.startswith("AWT_") for part in folders
    )


def read(path: Path) -> Source:
    """Read one file; the folders above it say whether it is the zero-shot or the few-shot set."""
    folders = {part.lower() for part in path.resolve().parts}
    shots = next((s for s in ("zero_shot", "few_shot") if f"awt_{s}" in folders), None)
    return read_mapping(path, f"{KIND}_{shots}" if shots else KIND, KIND)

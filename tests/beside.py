"""The folder ``shared`` beside the repository: photographs and files that others released."""

from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared"
POOLS = BESIDE / "pools"
RELEASED = POOLS / "ProAPO"
PHOTOGRAPHS = BESIDE / "pictures"
#: Whatever a test reads of it, with how many files of a kind are there at least.
PARTS = {
    RELEASED: ("**/*.json", 30),
    POOLS / "CuPL": ("**/*.json", 10),
    PHOTOGRAPHS / "oxford_pets": ("**/*.jpg", 2000),
    PHOTOGRAPHS / "dtd10": ("**/*.jpg", 500),
}

# Only where there is no such folder at all: a part of it that is missing is a fault, and must fail.
needs_beside = pytest.mark.skipif(
    not BESIDE.is_dir(),
    reason="no folder 'shared' with photographs and released files is beside the repository",
)

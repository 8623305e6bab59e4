"""What the store says about itself."""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ShelfReport", "StoreReport", "Verification", "human_bytes"]


def human_bytes(count: int) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> human_bytes(812), human_bytes(20_000_000_000)
    ('812 B', '20.0 GB')
    """
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


@dataclass(frozen=True)
class ShelfReport:
    """What the store holds for one encoder.

    Attributes
    ----------
    fingerprint : str
        The encoder's fingerprint.
    name : str
        The name the encoder goes by, empty if it was never given.
    rows, bytes, segments : int
        Vectors stored, room taken (all files), and segment files.
    corrupt : int
        Damaged segments, set aside or not yet; their vectors are computed again when needed.
    """

    fingerprint: str
    name: str
    rows: int
    bytes: int
    segments: int
    corrupt: int


@dataclass(frozen=True)
class StoreReport:
    """What the store holds, encoder by encoder; ``str()`` gives a table.

    Examples
    --------
    >>> shelf = ShelfReport("9f3c", "ViT-B-32/openai", 1200, 2_500_000, 2, 0)
    >>> print(StoreReport("cache/store", 20_000_000_000, (shelf,)))
    cache/store: 1,200 vectors, 2.5 MB of at most 20.0 GB
         vectors       size  files  damaged  encoder
           1,200     2.5 MB      2        0  ViT-B-32/openai (9f3c)
    """

    root: str
    limit: int
    shelves: tuple[ShelfReport, ...]

    @property
    def rows(self) -> int:
        """Vectors stored."""
        return sum(shelf.rows for shelf in self.shelves)

    @property
    def bytes(self) -> int:
        """Room taken on disk."""
        return sum(shelf.bytes for shelf in self.shelves)

    @property
    def corrupt(self) -> int:
        """Damaged segments."""
        return sum(shelf.corrupt for shelf in self.shelves)

    def to_dict(self) -> dict[str, Any]:
        """Give the report as JSON-ready values."""
        totals = {"rows": self.rows, "bytes": self.bytes, "corrupt": self.corrupt}
        return {**asdict(self), **totals, "shelves": [asdict(shelf) for shelf in self.shelves]}

    def __str__(self) -> str:
        taken = f"{human_bytes(self.bytes)} of at most {human_bytes(self.limit)}"
        lines = [f"{self.root}: {self.rows:,} vectors, {taken}"]
        if self.shelves:
            lines.append(f"{'vectors':>12} {'size':>10} {'files':>6} {'damaged':>8}  encoder")
        for shelf in self.shelves:
            name = f"{shelf.name} ({shelf.fingerprint})" if shelf.name else shelf.fingerprint
            lines.append(
                f"{shelf.rows:>12,} {human_bytes(shelf.bytes):>10} "
                f"{shelf.segments:>6} {shelf.corrupt:>8}  {name}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Verification:
    """What a check of every byte found; ``str()`` gives a sentence.

    Attributes
    ----------
    segments : int
        Files checked.
    damaged : tuple of str
        Paths of those that were not as written; they have been set aside, where the folder allows.
    rows_lost : int
        Vectors in blocks that failed their checksum; the rest of such a file is kept. Files whose
        index is damaged cannot be counted.

    Examples
    --------
    >>> print(Verification(segments=3, damaged=(), rows_lost=0))
    3 files checked, all sound
    """

    segments: int
    damaged: tuple[str, ...]
    rows_lost: int

    @property
    def ok(self) -> bool:
        """Whether nothing was damaged."""
        return not self.damaged

    def to_dict(self) -> dict[str, Any]:
        """Give the result as JSON-ready values."""
        return {**asdict(self), "damaged": list(self.damaged), "ok": self.ok}

    def __str__(self) -> str:
        if self.ok:
            return f"{self.segments} files checked, all sound"
        files = "\n  ".join(self.damaged)
        return (
            f"{self.segments} files checked, {len(self.damaged)} damaged and set aside "
            f"(their vectors are computed again when needed):\n  {files}"
        )

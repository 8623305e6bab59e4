"""What the store tells about itself."""

from dataclasses import asdict, dataclass
from typing import Any

from promptboost.errors import human_bytes


@dataclass(frozen=True)
class EncoderShare:
    """What the store holds for one encoder: embeddings, bytes on disk, files, damaged files."""

    fingerprint: str
    name: str = ""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    corrupt: int = 0


@dataclass(frozen=True)
class StoreReport:
    """What the store holds, encoder by encoder; ``str()`` gives a table.

    Examples
    --------
    >>> share = EncoderShare("9f3c", "ViT-B-32/openai", 1200, 2_500_000, 1, 0)
    >>> print(StoreReport("cache/store", 20_000_000_000, (share,)))
    cache/store: 1,200 vectors, 2.5 MB of at most 20.0 GB
         vectors       size  files  damaged  encoder
           1,200     2.5 MB      1        0  ViT-B-32/openai (9f3c)
    """

    root: str
    limit: int
    encoders: tuple[EncoderShare, ...]
    #: Room that the files of an earlier version take; they are the first to go.
    outdated_bytes: int = 0

    @property
    def rows(self) -> int:
        """Embeddings stored."""
        return sum(share.rows for share in self.encoders)

    @property
    def bytes(self) -> int:
        """Room taken on disk."""
        return self.outdated_bytes + sum(share.bytes for share in self.encoders)

    @property
    def corrupt(self) -> int:
        """Damaged files."""
        return sum(share.corrupt for share in self.encoders)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        totals = {"rows": self.rows, "bytes": self.bytes, "corrupt": self.corrupt}
        return {**asdict(self), **totals, "encoders": [asdict(share) for share in self.encoders]}

    def __str__(self) -> str:
        taken = f"{human_bytes(self.bytes)} of at most {human_bytes(self.limit)}"
        lines = [f"{self.root}: {self.rows:,} vectors, {taken}"]
        if self.encoders:
            lines.append(f"{'vectors':>12} {'size':>10} {'files':>6} {'damaged':>8}  encoder")
        for share in self.encoders:
            name = f"{share.name} ({share.fingerprint})" if share.name else share.fingerprint
            lines.append(
                f"{share.rows:>12,} {human_bytes(share.bytes):>10} "
                f"{share.files:>6} {share.corrupt:>8}  {name}"
            )
        if self.outdated_bytes:
            size = human_bytes(self.outdated_bytes)
            lines.append(f"{size} of an earlier version: `promptboost cache clear` deletes them")
        return "\n".join(lines)


@dataclass(frozen=True)
class Verification:
    """What a check of every byte found; ``str()`` gives a sentence.

    What is sound in the damaged files has been kept. ``rows_lost`` counts the embeddings in blocks
    that failed their checksum; what a file lost that SQLite cannot read cannot be counted.

    Examples
    --------
    >>> print(Verification(files=3, damaged=(), rows_lost=0))
    3 files checked, all sound
    """

    files: int
    damaged: tuple[str, ...]
    rows_lost: int

    @property
    def ok(self) -> bool:
        """Whether nothing was damaged."""
        return not self.damaged

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        return {**asdict(self), "damaged": list(self.damaged), "ok": self.ok}

    def __str__(self) -> str:
        if self.ok:
            return f"{self.files} files checked, all sound"
        files = "\n  ".join(self.damaged)
        return (
            f"{self.files} files checked, {len(self.damaged)} damaged and set right "
            f"(what was lost is computed again when needed):\n  {files}"
        )

"""Archives of strangers: tars and Parquet files that unpack to far more than they are."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

#: More than a process may take for one of them, in bytes.
MOST = 700 * 2**20
_READ = """
import resource, sys
from promptboost.distributed.images import list_items, open_images
import pyarrow.parquet
def peak(): return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
kinds = []
try:
    for image in open_images(list_items(sys.argv[1])):
        kinds.append(type(image).__name__)
except Exception as error:
    kinds.append(f"{type(error).__name__}: {error}")
print(peak() - before, len(kinds), sorted(set(kinds)))
"""


def _sparse(path: Path) -> None:
    """Write a file of zeros, 64 GiB, into a tar of 1.5 KB."""

    def number(value: int, size: int) -> bytes:
        if value < 8 ** (size - 1):
            return b"%0*o\\0" % (size - 1, value)
        return b"\x80" + value.to_bytes(size - 1, "big")

    head = bytearray(512)
    for start, field in (
        (0, b"sea/big.png"),
        (100, b"0000644\0" + b"0000000\0" * 2),
        (124, b"00000000000\0" * 2),
        (156, b"S"),
        (257, b"ustar  \0"),
        (386, number(2**36, 12) + b"00000000000\0"),
        (483, number(2**36, 12)),
        (148, b" " * 8),
    ):
        head[start : start + len(field)] = field
    head[148:156] = b"%06o\0 " % sum(head)
    path.write_bytes(bytes(head) + bytes(1024))


def _long_label(path: Path) -> None:
    """Write a label of 300 MB."""
    with tarfile.open(path, "w") as archive:
        for name, data in (("a.png", b"no image"), ("a.txt", bytes(300 * 2**20))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _links(path: Path) -> None:
    """Write members that are links and devices, and names that lead elsewhere."""
    with tarfile.open(path, "w") as archive:
        for name, kind in (
            ("../../up.png", tarfile.REGTYPE),
            ("/etc/abs.png", tarfile.REGTYPE),
            ("link.png", tarfile.SYMTYPE),
            ("hard.png", tarfile.LNKTYPE),
            ("device.png", tarfile.CHRTYPE),
            ("pipe.png", tarfile.FIFOTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member, io.BytesIO())


def _one_row(path: Path) -> None:
    """Write one image of a gigabyte of zeros, 33 KB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # In a process of its own, whose memory is given back.
    zeros = pa.py_buffer(bytes(2**30))
    offsets = pa.py_buffer((0).to_bytes(8, "little") + (2**30).to_bytes(8, "little"))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, zeros])
    pq.write_table(pa.table({"image": column}), path, compression="zstd")


def _one_for_all(path: Path) -> None:
    """Write 64 rows that share one image of 60 MB, 2 KB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.array([bytes(60 * 2**20)], pa.binary())
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64), image)
    pq.write_table(pa.table({"image": column}), path, compression="zstd")


#: What is written, and what reading it comes to.
BOMBS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "sparse tar": (_sparse, "a.tar", "sea/big.png is too large or sparse: 68.7 GB"),
    "long label": (_long_label, "a.tar", "1 ['LabeledImage']"),
    "links in a tar": (_links, "a.tar", "2 ['LabeledImage']"),
    "one row": (_one_row, "a.parquet", "would unpack to 1.1 GB"),
    "one for all": (_one_for_all, "a.parquet", "64 ['LabeledImage']"),
}


def read(folder: Path, name: str) -> tuple[int, str]:
    """Read an archive in a process of its own; return the memory it took, and what came of it."""
    write, file, _ = BOMBS[name]
    code = f"""
from pathlib import Path
from tests.attack import archives
archives.{write.__name__}(Path({str(folder / file)!r}))
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    command = [sys.executable, "-c", _READ, str(folder / file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    taken, _, came = done.stdout.partition(" ")
    return int(taken or -1), came.strip() or done.stderr

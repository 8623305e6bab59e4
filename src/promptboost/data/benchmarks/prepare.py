"""Download and unpack benchmarks into the layout of the protocol."""

import csv
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptboost.data.benchmarks.registry import Benchmark
from promptboost.data.benchmarks.splits import WNID, read_split
from promptboost.data.benchmarks.survey import Survey, survey_benchmark
from promptboost.errors import DataError, MissingExtraError
from promptboost.io import read_text
from promptboost.progress import Progress, no_progress

_TIMEOUT = 60.0
_BLOCK = 1 << 20
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".zip")
_LABELS = "LOC_val_solution.csv"
_VIDEOS = "UCF-101"


def prepare_benchmark(
    benchmark: Benchmark,
    data: Path,
    *,
    mirror: str | None = None,
    say: Callable[[str], object] = lambda _: None,
    progress: Progress = no_progress,
) -> Survey:
    """Download what is missing of a benchmark, unpack and sort it, and check the result.

    `data` is the folder that holds all benchmarks. Archives in it are not downloaded again; what has no
    public address stays missing. `mirror` is the URL of a folder with all files; `say` is called with
    messages.
    """
    survey = survey_benchmark(benchmark, data) if data.is_dir() else None
    if survey is not None and survey.complete:
        return survey
    folder = data / benchmark.folders[0]
    folder.mkdir(parents=True, exist_ok=True)

    def fetch(name: str, address: str) -> bool:
        """Download a file that has an address; return whether there was one."""
        url = f"{mirror.rstrip('/')}/{name}" if mirror else address
        if url:
            say(f"downloading {url}")
            _download(url, folder / name, progress)
        return bool(url)

    for name, address in benchmark.files.items():
        if survey is None or survey.place.list_named(name) is None:
            fetch(name, address)
    if survey is None or not survey.files:
        for archive in benchmark.archives:
            path = folder / archive.name
            downloaded = not path.exists() and fetch(archive.name, archive.address)
            if path.exists():
                say(f"unpacking {path}")
                _unpack(path, data / archive.into)
            if downloaded:
                path.unlink()
    if benchmark.name == "imagenet":
        _sort_validation_images(folder)
    if benchmark.name == "ucf101" and (folder / _VIDEOS).is_dir():
        _extract_frames(folder, str(benchmark.split_file), progress)
    return survey_benchmark(benchmark, data, look=True, progress=progress)


def _download(url: str, path: Path, progress: Progress) -> None:
    """Download a file, whole or not at all."""
    partial = path.with_name(path.name + ".part")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as reply, partial.open("wb") as file:
            size, done = int(reply.headers.get("Content-Length") or 0), 0
            while block := reply.read(_BLOCK):
                file.write(block)
                done += len(block)
                progress(f"downloading {path.name}", done, max(size, done))
        if size and done < size:
            raise DataError(
                f"{url}: the connection ended after {done:,} of {size:,} bytes; try again"
            )
        is_archive = zipfile.is_zipfile(partial) or tarfile.is_tarfile(partial)
        if path.name.endswith(_ARCHIVES) and not is_archive:
            raise DataError(
                f"{url} is not an archive, perhaps a web page; download it by hand to {path}"
            )
        os.replace(partial, path)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise DataError(f"cannot download {url}: {error}; put the file into {path}") from error
    finally:
        partial.unlink(missing_ok=True)


def _unpack(archive: Path, target: Path) -> None:
    """Unpack an archive and those in it; paths that lead out of the folder are refused."""
    target.mkdir(parents=True, exist_ok=True)
    # In a folder of its own first, so that an interrupted unpacking leaves nothing behind.
    with tempfile.TemporaryDirectory(dir=target, prefix=".unpacking-") as name:
        try:
            _extract(archive, Path(name))
            for inner in sorted(p for p in Path(name).rglob("*") if p.name.endswith(_ARCHIVES)):
                # The archives of ImageNet's classes have no folder in them.
                folder = inner.parent / (inner.stem if WNID.fullmatch(inner.stem) else "")
                _extract(inner, folder)
                inner.unlink()
        except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
            raise DataError(f"cannot unpack {archive}: {error}") from error
        _merge(Path(name), target)


def _extract(archive: Path, folder: Path) -> None:
    # Zip archives leave out what leads outside by themselves.
    safe: dict[str, Any] = {} if zipfile.is_zipfile(archive) else {"filter": "data"}
    shutil.unpack_archive(archive, folder, **safe)


def _merge(source: Path, target: Path) -> None:
    """Move everything in a folder into another, which keeps what it has."""
    for path in sorted(source.iterdir()):
        moved = target / path.name
        if path.is_dir() and moved.is_dir():
            _merge(path, moved)
        elif not moved.exists():
            path.rename(moved)


def _sort_validation_images(folder: Path) -> None:
    """Move ImageNet's validation images into a folder for each class, by Kaggle's list of labels."""
    images = next((p for p in (folder / "images" / "val", folder / "val") if p.is_dir()), None)
    labels = next((p for p in (folder / _LABELS, folder.parent / _LABELS) if p.is_file()), None)
    if images is None or labels is None:
        return
    for row in csv.DictReader(read_text(labels, error=DataError).splitlines()):
        wnid = (row.get("PredictionString") or "").partition(" ")[0]
        image = images / f"{row.get('ImageId')}.JPEG"
        if WNID.fullmatch(wnid) and image.parent == images and image.is_file():
            (images / wnid).mkdir(exist_ok=True)
            image.rename(images / wnid / image.name)


def _extract_frames(folder: Path, split_file: str, progress: Progress) -> None:
    """Write the middle frame of each listed video of UCF101."""
    try:
        import av
    except ImportError as error:
        raise MissingExtraError(
            "frames of videos need PyAV: pip install 'promptboost[video]'"
        ) from error
    videos = {path.stem: path for path in (folder / _VIDEOS).rglob("*.avi")}
    listed = [entry for items in read_split(folder / split_file).values() for entry in items]
    for number, entry in enumerate(listed, start=1):
        image = folder / "UCF-101-midframes" / entry.path
        video = videos.get(image.stem)
        if video is not None and not image.exists():
            try:
                with av.open(video) as container:
                    frames = [frame.pts for frame in container.decode(video=0)]
                with av.open(video) as container:
                    decoded = container.decode(video=0)
                    middle: Any = [next(decoded) for _ in range(len(frames) // 2 + 1)][-1]
            except (av.FFmpegError, StopIteration, IndexError) as error:
                raise DataError(f"{video} cannot be read: {error}") from error
            image.parent.mkdir(parents=True, exist_ok=True)
            middle.to_image().save(image, quality=95)
        progress("extracting frames", number, len(listed))

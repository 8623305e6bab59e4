"""Push runs to a model hub, and pull them; downloads are checked before they are written."""

import hashlib
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from promptboost.errors import (
    FileFormatError,
    MissingExtraError,
    PromptBoostError,
    RunError,
    SettingError,
)
from promptboost.io import HEADS, json_text, load_json, read_bytes, write_bytes
from promptboost.model import PromptEnsemble
from promptboost.progress import Progress, no_progress, stage
from promptboost.run.run_folder import RunFolder, public, write_toml

#: Lists the files of a run on a hub with their digests.
MANIFEST = "promptboost.json"
_TEXTS = ("ensemble.json", "run.toml", "metrics.json", "residual.json", "edits.json", "README.md")
#: Files that show or name images.
_IMAGES = ("thumbnails.json", "explanations.json", "predictions.csv", "report.html", "weights.json")
_LARGEST = 2**30


class HubRun(NamedTuple):
    """A run on a hub: the local folder, the repository, its revision, and the files."""

    run: Path
    repository: str
    revision: str
    files: tuple[str, ...]


def push_run(
    run: Path,
    repository: str,
    *,
    images: bool = False,
    private: bool = False,
    message: str | None = None,
    endpoint: str | None = None,
    progress: Progress = no_progress,
) -> HubRun:
    """Upload a run to a model hub: ensemble, heads, results and card; with `images`, thumbnails too.

    Paths of this machine are removed.
    """
    _check_name(repository)
    folder = RunFolder(run)
    folder.check_readable()
    hub = _hub(endpoint)
    content = folder.steady(lambda: _content(folder, images=images))
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    manifest = {"format": "promptboost-run", "version": 1, "files": digests}
    content[MANIFEST] = json_text(manifest).encode("utf-8")
    with tempfile.TemporaryDirectory() as place:
        for name, data in content.items():
            write_bytes(Path(place) / name, data)
        try:
            what = f"sending {len(content)} files to {repository}"
            with _without_bars_of_hub(), stage(progress, what):
                hub.create_repo(repository, private=private, exist_ok=True)
                done = hub.upload_folder(
                    repo_id=repository,
                    folder_path=place,
                    commit_message=message or f"promptboost run {folder.home.resolve().name}",
                )
        except Exception as error:  # the library has many kinds of errors
            raise _unreachable("push to", repository, error) from error
    return HubRun(run, repository, str(done.oid), tuple(content))


def _content(folder: RunFolder, *, images: bool) -> dict[str, bytes]:
    """Read the files of a run to upload, without paths of this machine."""
    wanted = [*_TEXTS, *(_IMAGES if images else ())]
    heads = sorted(path.name for path in folder.path.glob(HEADS))
    found = {}
    for name in (*wanted, *heads):
        path = folder.path / name
        if path.is_file():
            found[name] = read_bytes(path)
    if "run.toml" in found:
        found["run.toml"] = write_toml(public(folder.tables)).encode("utf-8")
    PromptEnsemble.from_json(found["ensemble.json"].decode("utf-8-sig"))
    return found


def pull_run(
    repository: str,
    run: Path,
    *,
    revision: str | None = None,
    overwrite: bool = False,
    endpoint: str | None = None,
    progress: Progress = no_progress,
) -> HubRun:
    """Download a revision of a run from a model hub, and write it if it is complete and valid.

    Only files of a run are downloaded, each is checked against its digest, and nothing is executed. The
    default `revision` is the newest; it is recorded in ``run.toml``.
    """
    _check_name(repository)
    new = RunFolder(run)
    new.check_free(overwrite=overwrite, resume=False)
    hub = _hub(endpoint)
    try:
        with _without_bars_of_hub(), tempfile.TemporaryDirectory() as place:
            with stage(progress, f"asking for {repository}"):
                exact = str(hub.model_info(repository, revision=revision).sha)
                _get(hub, repository, MANIFEST, exact, place)
            # Other files of the repository are not downloaded.
            digests = _listed(Path(place), repository)
            with stage(progress, f"getting {repository}", len(digests)) as advance:
                for name in digests:
                    _get(hub, repository, name, exact, place)
                    advance()
            content = _checked(Path(place), digests, repository)
    except PromptBoostError:
        raise
    except Exception as error:
        raise _unreachable("pull from", repository, error) from error
    taken = tuple(content)
    with new.writing("pull", fit=True):
        _write(new, content, repository, exact)
    return HubRun(run, repository, exact, taken)


def _get(hub: Any, repository: str, name: str, revision: str, place: str) -> None:
    """Download a file into a folder, if it is there."""
    from huggingface_hub.errors import RemoteEntryNotFoundError

    with suppress(RemoteEntryNotFoundError):
        hub.hf_hub_download(repository, name, revision=revision, local_dir=place)


@contextmanager
def _without_bars_of_hub() -> Iterator[None]:
    """Hide the progress bars of the hub client, which are not removed at the end."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an environment variable that keeps them
        disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _listed(place: Path, repository: str) -> Mapping[str, str]:
    """Return the digests of the files by name; raise for files that no run has."""
    path = place / MANIFEST
    if not path.is_file():
        raise RunError(f"{repository} holds no promptboost run: it has no {MANIFEST}")
    record = load_json(read_bytes(path).decode("utf-8", "replace"), MANIFEST)
    digests = record.get("files") if isinstance(record, Mapping) else None
    if not isinstance(digests, Mapping) or "ensemble.json" not in digests:
        raise FileFormatError(f"{repository}: {MANIFEST} does not list the files of a run")
    for name in digests:
        if "/" in name or not (name in (*_TEXTS, *_IMAGES) or fnmatchcase(name, HEADS)):
            raise FileFormatError(
                f"{repository}: {name!r} is no file of a run, so nothing is taken"
            )
    return digests


def _checked(place: Path, digests: Mapping[str, str], repository: str) -> dict[str, bytes]:
    """Read the downloaded files; raise unless all match their digests."""
    content = {}
    for name, digest in digests.items():
        file = place / name
        if not file.is_file() or file.is_symlink() or file.stat().st_size > _LARGEST:
            raise FileFormatError(f"{repository}: {name} is missing or too large")
        data = read_bytes(file)
        if hashlib.sha256(data).hexdigest() != digest:
            raise FileFormatError(
                f"{repository}: {name} is not what {MANIFEST} says: nothing is taken"
            )
        content[name] = data
    PromptEnsemble.from_json(content["ensemble.json"].decode("utf-8-sig", "replace"))
    return content


def _write(new: RunFolder, content: dict[str, bytes], repository: str, revision: str) -> None:
    """Write a downloaded run and its origin; the results last, as they mark a finished run."""
    with tempfile.TemporaryDirectory() as place:
        before = RunFolder(Path(place))
        if "run.toml" in content:
            write_bytes(before.settings_path, content.pop("run.toml"))
            tables, settings = dict(before.tables), before.settings
        else:
            from promptboost.config import FitConfig

            tables, settings = {}, FitConfig()
    tables.pop("fit", None)
    fresh = new.begin(settings, {**tables, "hub": {"repository": repository, "revision": revision}})
    for name in sorted(content, key=lambda name: name == "metrics.json"):
        write_bytes(fresh.path / name, content[name], follow=False)
    fresh.end()


def _check_name(repository: str) -> None:
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", repository, re.ASCII) or ".." in repository:
        raise SettingError(f"{repository!r} is no name on a hub: give OWNER/NAME")


def _hub(endpoint: str | None) -> Any:
    if find_spec("huggingface_hub") is None:
        raise MissingExtraError(
            "a model hub needs huggingface_hub, which is not installed. Type: "
            "pip install 'promptboost[hub]'"
        )
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint)


def _unreachable(job: str, repository: str, error: Exception) -> RunError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return RunError(
        f"cannot {job} {repository}: {reason}. Is the name right, is there a network, and have you logged "
        "in (hf auth login)?"
    )

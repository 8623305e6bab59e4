"""Runs and classifiers on a model hub; downloads are checked before they are written."""

import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from promptboost.config import FitConfig
from promptboost.encoders.runtime import require_modules
from promptboost.errors import (
    FileFormatError,
    PromptBoostError,
    RunError,
    SettingError,
    human_bytes,
)
from promptboost.io import (
    HEADS,
    cache_folder,
    json_text,
    load_json,
    load_toml,
    read_bytes,
    write_bytes,
    write_text,
)
from promptboost.model import PromptEnsemble
from promptboost.model.classifier import PromptClassifier, load
from promptboost.model.ensemble import ENSEMBLE_FILE
from promptboost.progress import Progress, no_progress, stage
from promptboost.report.page import classifier_card
from promptboost.run.run_folder import RunFolder, public, write_toml

#: Lists the files of a run on a hub with their digests.
MANIFEST = "promptboost.json"
CARD = "README.md"
_TEXTS = ("ensemble.json", "run.toml", "metrics.json", "residual.json", "edits.json", CARD)
# Of the snippet of a card, which on a hub has the name of the repository.
_HERE = 'from_pretrained(".")'
#: Files that show or name images.
_IMAGES = ("thumbnails.json", "explanations.json", "predictions.csv", "report.html", "weights.json")
# As a slug of an encoder is; on some systems other characters lead to other folders.
_HEAD = re.compile(r"head-[A-Za-z0-9._-]{1,230}\.safetensors")
# Most bytes of a run, and of its manifest; seconds without data.
_LARGEST, _LARGEST_LIST, _SECONDS = 2**30, 2**20, 30.0
# A branch or tag, or a commit.
_REVISION = r"[\w][\w./-]{0,199}"


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
    what = f"promptboost run {folder.home.resolve().name}"
    revision = _upload(hub, repository, content, private, what, progress)
    return HubRun(run, repository, revision, tuple(content))


def _upload(
    hub: Any,
    repository: str,
    content: dict[str, bytes],
    private: bool,
    message: str,
    progress: Progress,
) -> str:
    """Upload files with a card and a manifest, and return the commit."""
    if CARD in content:
        content[CARD] = content[CARD].replace(
            _HERE.encode(), f'from_pretrained("{repository}")'.encode()
        )
    from huggingface_hub import CommitOperationAdd

    content[MANIFEST] = _manifest(content)
    files = [CommitOperationAdd(name, data) for name, data in content.items()]
    try:
        with (
            _without_bars_of_hub(),
            stage(progress, f"sending {len(content)} files to {repository}"),
        ):
            hub.create_repo(repository, private=private, exist_ok=True)
            done = hub.create_commit(repository, files, commit_message=message)
    except Exception as error:  # the library has many kinds of errors
        raise _unreachable("push to", repository, error) from error
    return str(done.oid)


def _manifest(content: Mapping[str, bytes]) -> bytes:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    manifest = {"format": "promptboost-run", "version": 1, "files": digests}
    return json_text(manifest).encode("utf-8")


def save_pretrained(classifier: Any, folder: str | os.PathLike[str]) -> None:
    """Write a classifier with a model card into a folder, as it would be on a hub.

    Parameters
    ----------
    classifier : PromptClassifier or PromptBoostClassifier
        A fitted classifier. A run folder already has all files.
    folder : str or path
        The folder to write.
    """
    path = Path(folder)
    classifier = getattr(classifier, "classifier_", classifier)
    classifier.save(path)
    write_text(path / CARD, classifier_card(classifier))
    names = ("ensemble.json", CARD, *(file.name for file in sorted(path.glob(HEADS))))
    write_bytes(path / MANIFEST, _manifest({name: read_bytes(path / name) for name in names}))


def push_to_hub(
    classifier: Any, repository: str, *, private: bool = False, endpoint: str | None = None
) -> str:
    """Upload a classifier or a run to a model hub, and return the commit.

    Parameters
    ----------
    classifier : PromptClassifier, PromptBoostClassifier, str, path or RunFolder
        A fitted classifier, or a run, of which no images are uploaded.
    repository : str
        ``OWNER/NAME``; created if it does not exist.
    private : bool, default=False
        Create the repository as a private one.
    endpoint : str, optional
        URL of the hub, by default Hugging Face's, or HF_ENDPOINT.
    """
    if isinstance(classifier, RunFolder):
        classifier = classifier.home
    if isinstance(classifier, str | os.PathLike):
        return push_run(Path(classifier), repository, private=private, endpoint=endpoint).revision
    _check_name(repository)
    hub = _hub(endpoint)
    with tempfile.TemporaryDirectory() as temporary:
        save_pretrained(classifier, temporary)
        files = [file for file in sorted(Path(temporary).iterdir()) if file.name != MANIFEST]
        content = {file.name: read_bytes(file) for file in files}
    return _upload(hub, repository, content, private, "promptboost classifier", no_progress)


def from_pretrained(
    repository: str | os.PathLike[str],
    encoder: Any = None,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    **options: Any,
) -> PromptClassifier:
    """Load a classifier from a model hub, or from a folder.

    Downloads are checked against their digests and kept in the user's cache; nothing is executed.

    Parameters
    ----------
    repository : str or path
        ``OWNER/NAME``, or a folder.
    encoder : optional
        The encoder, if not that of the fit.
    revision : str, optional
        A branch, a tag or a commit, by default the newest. A commit in the cache needs no network.
    endpoint : str, optional
        URL of the hub, by default Hugging Face's, or HF_ENDPOINT.
    **options
        Further parameters of :func:`promptboost.load`, such as ``allow_download=True`` for the encoder.
    """
    if Path(repository).is_dir():
        return load(repository, encoder, **options)
    name = os.fspath(repository)
    _check_name(name)
    downloads = cache_folder() / "hub" / name.replace("/", "--")
    folder = downloads / (revision or "")
    if not re.fullmatch("[0-9a-f]{40}", revision or "") or not (folder / ENSEMBLE_FILE).exists():
        exact, content = _downloaded(name, revision, endpoint, no_progress)
        folder = downloads / exact
        for file in sorted(content, key=lambda file: file == ENSEMBLE_FILE):
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / file, content[file], follow=False)
    return load(folder, encoder, **options)


def _content(folder: RunFolder, *, images: bool) -> dict[str, bytes]:
    """Read the files of a run to upload, without paths of this machine."""
    wanted = [*_TEXTS, *(_IMAGES if images else ())]
    heads = sorted(path.name for path in folder.path.glob(HEADS))
    contents = {}
    for name in (*wanted, *heads):
        path = folder.path / name
        if path.is_file():
            contents[name] = read_bytes(path)
    if "run.toml" in contents:
        contents["run.toml"] = write_toml(public(folder.tables)).encode("utf-8")
    PromptEnsemble.from_json(contents["ensemble.json"].decode("utf-8-sig"))
    return contents


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
    exact, content = _downloaded(repository, revision, endpoint, progress)
    taken = tuple(content)
    with new.writing("pull", fit=True):
        _write(new, content, repository, exact)
    return HubRun(run, repository, exact, taken)


def _downloaded(
    repository: str, revision: str | None, endpoint: str | None, progress: Progress
) -> tuple[str, dict[str, bytes]]:
    """Download the files of a revision that its manifest lists; return its commit and the files."""
    if not re.fullmatch(_REVISION, revision or "main", re.ASCII) or ".." in (revision or ""):
        raise SettingError(f"{revision!r} is no revision: give a branch, a tag or a commit")
    hub = _hub(endpoint)
    try:
        with stage(progress, f"asking for {repository}"):
            exact = hub.model_info(repository, revision=revision or "main", timeout=_SECONDS).sha
            if not re.fullmatch("[0-9a-f]{40}", exact or ""):
                raise FileFormatError(
                    f"{repository}: the hub names no commit of {revision or 'main'}"
                )
            manifest = _file(hub, repository, MANIFEST, exact, _LARGEST_LIST)
        # Other files of the repository are not downloaded.
        digests = _listed(manifest, repository)
        content: dict[str, bytes] = {}
        with stage(progress, f"getting {repository}", len(digests)) as advance:
            for name, digest in digests.items():
                left = _LARGEST - sum(map(len, content.values()))
                data = _file(hub, repository, name, exact, left)
                if data is None:
                    raise FileFormatError(f"{repository}: {name} is missing")
                if hashlib.sha256(data).hexdigest() != digest:
                    raise FileFormatError(
                        f"{repository}: {name} does not match its digest in {MANIFEST}; the download is "
                        "discarded"
                    )
                content[name] = data
                advance()
        try:
            PromptEnsemble.from_json(content["ensemble.json"].decode("utf-8-sig", "replace"))
        except FileFormatError as error:
            raise FileFormatError(f"{repository}: ensemble.json: {error}") from error
    except PromptBoostError:
        raise
    except Exception as error:
        raise _unreachable("pull from", repository, error) from error
    return exact, content


def _file(hub: Any, repository: str, name: str, commit: str, most: int) -> bytes | None:
    """Download at most `most` bytes of a file; return None if there is no such file.

    The client's own download writes files of any size.
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repository, name, revision=commit, endpoint=hub.endpoint)
    chunks: list[bytes] = []
    size = 0
    options: dict[str, Any] = {
        # Compressed, one chunk could unpack to gigabytes.
        "headers": {**build_hf_headers(), "Accept-Encoding": "identity"},
        "follow_redirects": True,
        "timeout": _SECONDS,
    }
    with get_session().stream("GET", url, **options) as response:
        if response.status_code == 404:
            return None
        response.raise_for_status()
        for chunk in response.iter_raw():
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                raise FileFormatError(
                    f"{repository}: {name} is too large: the files of a run take at most "
                    f"{human_bytes(_LARGEST)}, its {MANIFEST} {human_bytes(_LARGEST_LIST)}"
                )
    return b"".join(chunks)


@contextmanager
def _without_bars_of_hub() -> Iterator[None]:
    """Hide the progress bars of the hub client, which are not removed at the end."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    hidden = are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an environment variable that keeps them
        disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            enable_progress_bars()


def _listed(manifest: bytes | None, repository: str) -> Mapping[str, str]:
    """Return the digests of the files by name; raise for files that no run has."""
    if manifest is None:
        raise RunError(f"{repository} holds no promptboost run: it has no {MANIFEST}")
    record = load_json(manifest.decode("utf-8", "replace"), f"{repository}: {MANIFEST}")
    digests = record.get("files") if isinstance(record, Mapping) else None
    if not isinstance(digests, Mapping) or "ensemble.json" not in digests:
        raise FileFormatError(f"{repository}: {MANIFEST} does not list the files of a run")
    for name in digests:
        if not (name in (*_TEXTS, *_IMAGES) or _HEAD.fullmatch(name)):
            raise FileFormatError(
                f"{repository}: {name!r} is no file of a run; nothing is downloaded"
            )
    return digests


def _write(new: RunFolder, content: dict[str, bytes], repository: str, revision: str) -> None:
    """Write a downloaded run and its origin; the results last, as they mark a finished run."""
    where = f"{repository}: run.toml"
    try:
        tables = load_toml(content.pop("run.toml", b"").decode("utf-8-sig"), where)
        settings = FitConfig.from_table(tables.pop("fit", {}))
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{where} is not UTF-8") from error
    except SettingError as error:
        raise FileFormatError(f"{where}: {error}") from error
    if not all(isinstance(table, dict) for table in tables.values()):
        raise FileFormatError(f"{where} holds more than tables")
    fresh = new.begin(settings, {**tables, "hub": {"repository": repository, "revision": revision}})
    for name in sorted(content, key=lambda name: name == "metrics.json"):
        write_bytes(fresh.path / name, content[name], follow=False)
    fresh.end()


def _check_name(repository: str) -> None:
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", repository, re.ASCII) or ".." in repository:
        raise SettingError(f"{repository!r} is no name on a hub: give OWNER/NAME")


def _hub(endpoint: str | None) -> Any:
    require_modules(["huggingface_hub"], "hub", "model hubs")
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint)


def _unreachable(job: str, repository: str, error: Exception) -> RunError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return RunError(
        f"cannot {job} {repository}: {reason}. Is the name right, is there a network, and have you logged "
        "in (hf auth login)?"
    )

"""The service: runs by name, their current versions, and the encoders they share."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.embedder import Embedder
from promptboost.encoders.registry import check_trusted
from promptboost.encoders.runtime import hash_bytes
from promptboost.errors import PromptBoostError, RunError, SettingError, few, without_place
from promptboost.io import Stamp, file_stamp, read_bytes, steady
from promptboost.model.classifier import PromptClassifier, load
from promptboost.model.ensemble import ENSEMBLE_FILE, PromptEnsemble
from promptboost.model.head import Head
from promptboost.model.head_files import RESIDUAL_FILE, head_file
from promptboost.report.page import card_markdown, read_run
from promptboost.run.run_folder import RunFolder
from promptboost.serve.batcher import Batcher, Outcome, ScoredImage
from promptboost.serve.limits import Limits, RequestError
from promptboost.serve.messages import ReloadOutcome, RunAnswer, VersionNote
from promptboost.serve.metrics import ServerMetrics

_log = logging.getLogger(__name__)
_REMEMBERED = 50  # versions in the history of a run
_WATCH_SECONDS = 1.0


@dataclass(frozen=True)
class RunVersion:
    """A run as it was loaded; its predictions never change."""

    number: int
    digest: str
    loaded: str
    classifier: PromptClassifier
    head: Head
    batcher: Batcher
    card: str | None
    stamps: tuple[Stamp | None, ...]

    @property
    def encoder_id(self) -> str:
        """The name of the encoder, without the folder in which its weights lie."""
        return without_place(self.batcher.name)

    def note(self) -> VersionNote:
        """Return its entry in the history."""
        return VersionNote(self.number, self.digest, self.loaded)


@dataclass
class ServedRun:
    """A run under a name, with its current version."""

    name: str
    path: Path
    current: RunVersion
    history: list[VersionNote] = field(default_factory=list)
    problem: str | None = None  # with the version that was to follow
    broken: tuple[Stamp | None, ...] | None = None  # files that could not be loaded

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.path if self.path.is_dir() else self.path.parent

    def stamps(self) -> tuple[Stamp | None, ...]:
        """Return stamps that change when its files do."""
        return _stamps(self.path, self.folder, self.current.batcher.encoder.id)

    def answer(self) -> RunAnswer:
        """Return a summary."""
        version, ensemble = self.current, self.current.classifier.ensemble
        return RunAnswer(
            name=self.name,
            version=version.number,
            digest=version.digest,
            loaded=version.loaded,
            encoder=version.encoder_id,
            classes=list(ensemble.class_names),
            rounds=len(ensemble),
            sentences=ensemble.n_prompts,
            residual=version.head.residual is not None,
            dimensions=version.head.dim,
            problem=self.problem,
            versions=self.history,
        )


def named_runs(given: Iterable[str]) -> dict[str, Path]:
    """Read ``RUN`` or ``NAME=RUN``: a run is called by the name of its folder, where none is given.

    Examples
    --------
    >>> list(named_runs(["runs/pets", "old=runs/pets-1"]))
    ['pets', 'old']
    """
    runs: dict[str, Path] = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals or not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            name, place = "", text
        path = Path(place)
        home = path.resolve().parent if path.name == ENSEMBLE_FILE else path.resolve()
        name = name or re.sub(r"[^A-Za-z0-9._-]+", "-", home.name).strip("-.") or "run"
        if name in runs:
            raise SettingError(
                f"two runs are called {name}: name one of them otherwise, as in other={place}"
            )
        runs[name] = path
    if not runs:
        raise SettingError("there is no run to serve")
    return runs


class Service:
    """The runs and encoders of a server.

    Parameters
    ----------
    runs : mapping from str to path
        Run folders, or files ``ensemble.json``, by name; the first one is the default.
    limits : Limits, optional
        Limits on requests.
    encoder : str, optional
        The encoder of all runs, if not those of their fits.
    text_only : bool, default=False
        Predict without the residual.
    cache : bool, default=True
        Use stored embeddings of sentences. Embeddings of images are never stored.
    device : str, optional
        Where encoders run.
    allow_download : bool, default=False
        Download encoders that runs name from a model hub.
    """

    def __init__(
        self,
        runs: Mapping[str, Path],
        *,
        limits: Limits | None = None,
        encoder: str | None = None,
        text_only: bool = False,
        cache: bool = True,
        device: str | None = None,
        allow_download: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self.metrics = ServerMetrics()
        self.stopping = False
        self._encoder, self._text_only = encoder, text_only
        self._cache, self._device, self._allow_download = cache, device, allow_download
        self._batchers: dict[str, Batcher] = {}
        self._started = False
        self._loading = threading.Lock()
        self.runs: dict[str, ServedRun] = {}
        for name, path in runs.items():
            version = self._load(path, 1)
            self.runs[name] = ServedRun(name, path, version, [version.note()])
            self.metrics.version(name, 1)

    # --- predicting ----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether every current encoder has embedded an image, and the server is not about to stop."""
        answering = [run.current.batcher for run in self.runs.values()]
        return self._started and not self.stopping and all(batcher.ready for batcher in answering)

    def run(self, name: str | None = None) -> ServedRun:
        """Return the run of a name; by default the first."""
        if name is None:
            return next(iter(self.runs.values()))
        if name not in self.runs:
            known = few(list(self.runs), 10)
            raise RequestError(
                404, "unknown run", f"there is no run of that name here, only {known}"
            )
        return self.runs[name]

    async def answer(
        self, run: ServedRun, images: Sequence[tuple[str, Callable[[], bytes]]]
    ) -> tuple[RunVersion, list[Outcome]]:
        """Return the outcome of each image, and the version of the run that made it."""
        while True:
            version = run.current
            try:
                outcomes = await version.batcher.answer(images, version.head)
                break
            except RequestError:
                # Another thread has just replaced the version, and closed the encoder of the old one.
                if version is run.current:
                    raise
        for outcome in outcomes:
            if isinstance(outcome, RequestError):
                self.metrics.rejected(outcome.reason)
        self.metrics.images(run.name, sum(isinstance(outcome, ScoredImage) for outcome in outcomes))
        return version, outcomes

    async def score_rows(
        self, run: ServedRun, version: RunVersion, rows: NDArray[np.float32]
    ) -> list[Outcome]:
        """Return the probabilities of embeddings."""
        probabilities = await asyncio.to_thread(version.head.predict_proba, rows)
        self.metrics.images(run.name, len(rows))
        return [ScoredImage(*pair) for pair in zip(rows, probabilities, strict=True)]

    # --- loading -------------------------------------------------------------------------------

    def reload(self, name: str | None = None) -> list[ReloadOutcome]:
        """Reload runs whose files have changed; a version that cannot be loaded changes nothing.

        Running requests finish with the version they began with.
        """
        with self._loading:
            served = [self.run(name)] if name is not None else list(self.runs.values())
            outcomes = [self._reload(run) for run in served]
            self._close_unused()
        return outcomes

    def changed(self) -> list[str]:
        """Return the names of the runs whose files have changed since they were last loaded, or tried."""
        runs = self.runs.values()
        return [run.name for run in runs if run.stamps() not in (run.current.stamps, run.broken)]

    def _reload(self, run: ServedRun) -> ReloadOutcome:
        stamps = run.stamps()
        try:
            version = self._load(run.path, run.current.number + 1)
        except Exception as error:  # whatever it is, the old version works
            # repr: a damaged or forged file may contain control characters.
            _log.error(
                "%s: the new version cannot be loaded: %r",
                run.name,
                f"{type(error).__name__}: {error}",
            )
            run.broken = stamps
            run.problem = (
                f"the files have changed and cannot be loaded; version {run.current.number} goes on "
                "answering, and the log of the server says why"
            )
            self.metrics.broken(run.name)
            return ReloadOutcome(run.name, "broken", run.current.number)
        run.problem = run.broken = None
        if version.digest == run.current.digest:
            run.current = replace(run.current, stamps=version.stamps)
            return ReloadOutcome(run.name, "unchanged", run.current.number)
        run.current = version
        run.history = [*run.history, version.note()][-_REMEMBERED:]
        self.metrics.version(run.name, version.number)
        _log.warning("%s: version %d answers now", run.name, version.number)
        return ReloadOutcome(run.name, "loaded", version.number)

    def _load(self, path: Path, number: int) -> RunVersion:
        if path.is_dir() or path.suffix != ".json":
            RunFolder(path).check_readable()
            return steady(path, lambda: self._read(path, path, number))
        return self._read(path, path.parent, number)

    def _read(self, path: Path, folder: Path, number: int) -> RunVersion:
        ensemble = PromptEnsemble.load(path / ENSEMBLE_FILE if path.is_dir() else path)
        name = self._encoder or ensemble.encoder_id
        if name is None:
            raise RunError("the ensemble does not say which encoder it is for; add --encoder NAME")
        if self._encoder is None:
            check_trusted(name, allow_download=self._allow_download)
        batcher = self._batchers.get(name)
        if batcher is None:
            embedder = Embedder.open(name, cache=self._cache, device=self._device)
            batcher = Batcher(embedder, self.limits, self.metrics, name)
        encoder_id = batcher.encoder.id
        stamps = _stamps(path, folder, encoder_id)
        # The same encoder in the place of its name, so that runs share it.
        classifier = load(path, batcher.encoder, cache=self._cache, text_only=self._text_only)
        self._batchers[name] = batcher
        if self._started:
            batcher.start()
            batcher.wait_until_warm()  # before that it would turn requests away
        return RunVersion(
            number=number,
            digest=_digest(path, folder, encoder_id),
            loaded=datetime.now(UTC).isoformat(timespec="seconds"),
            classifier=classifier,
            head=classifier.head,
            batcher=batcher,
            card=_card(path),
            stamps=stamps,
        )

    def _close_unused(self) -> None:
        used = {id(run.current.batcher) for run in self.runs.values()}
        for name, batcher in list(self._batchers.items()):
            if id(batcher) not in used:
                del self._batchers[name]
                batcher.close()

    # --- beginning and ending ------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads of all encoders."""
        self._started = True
        for batcher in self._batchers.values():
            batcher.start()

    def stop(self) -> None:
        """Finish waiting images and end the threads."""
        self.stopping = True
        for batcher in self._batchers.values():
            if batcher.started:
                batcher.close()

    async def watch(self) -> None:
        """Reload changed runs, forever."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for name in await asyncio.to_thread(self.changed):
                await asyncio.to_thread(self.reload, name)


def explanations(version: RunVersion, embeddings: NDArray[np.float32]) -> list[dict[str, Any]]:
    """Explain predictions for embeddings; return JSON-serializable records."""
    try:
        return [explanation.record() for explanation in version.classifier.explain(embeddings)]
    except PromptBoostError as error:
        raise RequestError(422, "explain", str(error)) from None


def _files(path: Path, folder: Path, encoder_id: str) -> list[Path]:
    """Return the files that predictions depend on."""
    ensemble = path / ENSEMBLE_FILE if path.is_dir() else path
    return [ensemble, folder / RESIDUAL_FILE, folder / head_file(encoder_id)]


def _stamps(path: Path, folder: Path, encoder_id: str) -> tuple[Stamp | None, ...]:
    return tuple(file_stamp(file) for file in _files(path, folder, encoder_id))


def _digest(path: Path, folder: Path, encoder_id: str) -> str:
    files = _files(path, folder, encoder_id)
    digests = [hash_bytes(read_bytes(file)) if file.is_file() else "" for file in files]
    return hash_bytes(" ".join(digests).encode())


def _card(path: Path) -> str | None:
    """Return the model card of a run; None for an ensemble without measurements."""
    try:
        return card_markdown(read_run(path))
    except (PromptBoostError, OSError):
        return None

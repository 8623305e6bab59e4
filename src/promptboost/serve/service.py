"""The service: runs by name, their current versions, and the encoders they share."""

import asyncio
import hashlib
import logging
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.embedder import Embedder
from promptboost.encoders.registry import check_trusted
from promptboost.encoders.runtime import hash_file
from promptboost.errors import PromptBoostError, RunError, SettingError, few, without_place
from promptboost.io import Stamp, file_stamp, steady
from promptboost.model.classifier import PromptClassifier, load
from promptboost.model.ensemble import ENSEMBLE_FILE, PromptEnsemble
from promptboost.model.head import RESIDUAL_FILE, head_file
from promptboost.model.prediction import Prediction
from promptboost.report.page import card_markdown, read_run
from promptboost.run.predict import ScoredRow
from promptboost.run.run_folder import RunFolder
from promptboost.serve.batcher import Batcher
from promptboost.serve.limits import Limits, RequestError
from promptboost.serve.messages import NamedImage, RunAnswer
from promptboost.serve.metrics import ServerMetrics

_log = logging.getLogger(__name__)
_WATCH_SECONDS = 1.0


@dataclass(frozen=True)
class RunVersion:
    """A run as it was loaded; its predictions never change."""

    number: int
    digest: str
    loaded: str
    classifier: PromptClassifier
    batcher: Batcher
    card: str | None
    files: tuple[Path, ...]  # that affect predictions
    stamps: tuple[Stamp | None, ...]


@dataclass
class ServedRun:
    """A run under a name, with its current version."""

    name: str
    path: Path
    current: RunVersion
    seen: tuple[Stamp | None, ...]  # files that were last loaded, or tried
    problem: str | None = None  # of the next version

    def stamps(self) -> tuple[Stamp | None, ...]:
        """Return stamps that change when its files do."""
        return tuple(map(file_stamp, self.current.files))

    def answer(self) -> RunAnswer:
        """Return a summary."""
        version, ensemble = self.current, self.current.classifier.ensemble
        return RunAnswer(
            name=self.name,
            version=version.number,
            digest=version.digest,
            loaded=version.loaded,
            encoder=without_place(version.batcher.name),
            classes=list(ensemble.class_names),
            rounds=len(ensemble),
            sentences=ensemble.n_prompts,
            residual=version.classifier.head.residual is not None,
            dimensions=version.classifier.head.dim,
            problem=self.problem,
        )


def named_runs(given: Iterable[str]) -> dict[str, Path]:
    """Read ``RUN`` or ``NAME=RUN``; by default, the name of a run is that of its folder."""
    runs: dict[str, Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            name, folder = "", text
        path = Path(folder)
        name = name or re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name).strip("-.") or "run"
        if name in runs:
            raise SettingError(
                f"two runs are called {name}: give one of them another name, as in other={folder}"
            )
        runs[name] = path
    if not runs:
        raise SettingError("there is no run to serve")
    return runs


class Service:
    """The runs and encoders of a server.

    The first of the `runs` is the default; `encoder` replaces the encoders of their fits. With `cache`,
    stored embeddings of sentences are used; embeddings of images are never stored.
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
        self._encoder, self._text_only = encoder, text_only
        self._cache, self._device, self._allow_download = cache, device, allow_download
        self._batchers: dict[str, Batcher] = {}
        self._started = False
        self._loading = threading.Lock()
        self.runs: dict[str, ServedRun] = {}
        for name, path in runs.items():
            version = self._load(path, 1)
            self.runs[name] = ServedRun(name, path, version, version.stamps)
            self.metrics.loaded(name, 1)

    # --- predicting ----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether every current encoder has embedded an image."""
        return all(run.current.batcher.ready for run in self.runs.values())

    def run(self, name: str | None = None) -> ServedRun:
        """Return the run of a name; by default the first."""
        if name is None:
            return next(iter(self.runs.values()))
        if name not in self.runs:
            names = few(list(self.runs), 10)
            raise RequestError(404, "unknown run", f"there is no run of that name, only {names}")
        return self.runs[name]

    async def answer(
        self, run: ServedRun, version: RunVersion, images: Sequence[NamedImage]
    ) -> list[ScoredRow | Prediction]:
        """Score images; those that cannot be read have an error, unless all are such images."""
        outcomes = await version.batcher.answer(images, version.classifier.head)
        refusals = [outcome for outcome in outcomes if isinstance(outcome, RequestError)]
        for error in refusals:
            self.metrics.rejected.labels(error.reason).inc()
        self.metrics.images.labels(run.name).inc(len(outcomes) - len(refusals))
        if len(refusals) == len(outcomes):
            first = refusals[0]
            raise RequestError(first.status, "no image left", f"{images[0][0]}: {first}")
        return [
            Prediction(image=name, error=str(outcome))
            if isinstance(outcome, RequestError)
            else outcome
            for (name, _), outcome in zip(images, outcomes, strict=True)
        ]

    async def score_rows(
        self, run: ServedRun, version: RunVersion, rows: NDArray[np.float32]
    ) -> list[ScoredRow | Prediction]:
        """Return the probabilities of embeddings."""
        probabilities = await asyncio.to_thread(version.classifier.head.predict_proba, rows)
        self.metrics.images.labels(run.name).inc(len(rows))
        pairs = enumerate(zip(rows, probabilities, strict=True), start=1)
        return [ScoredRow(f"embedding {k}", (row,), values) for k, (row, values) in pairs]

    # --- loading -------------------------------------------------------------------------------

    def reload(self) -> None:
        """Reload runs whose files have changed; a version that cannot be loaded changes nothing.

        Running requests finish with the version they began with.
        """
        with self._loading:
            for run in self.runs.values():
                if run.stamps() != run.seen:
                    self._reload(run)
            self._retire_unused()

    def _reload(self, run: ServedRun) -> None:
        run.seen = run.stamps()
        try:
            version = self._load(run.path, run.current.number + 1)
        except Exception as error:  # of any type: the old version still works
            # repr: a damaged or forged file may contain control characters.
            _log.error(
                "%s: the new version cannot be loaded: %r",
                run.name,
                f"{type(error).__name__}: {error}",
            )
            run.problem = (
                f"the files have changed and cannot be loaded; version {run.current.number} is still "
                "served, and the reason is in the server's log"
            )
            self.metrics.reloads.labels(run.name, "broken").inc()
            return
        run.problem, run.seen = None, version.stamps
        if version.digest != run.current.digest:
            run.current = version
            self.metrics.loaded(run.name, version.number)
            _log.warning("%s: version %d is served now", run.name, version.number)

    def _load(self, path: Path, number: int) -> RunVersion:
        RunFolder(path).check_readable()
        return steady(path, lambda: self._read(path, number))

    def _read(self, path: Path, number: int) -> RunVersion:
        ensemble = PromptEnsemble.load(path / ENSEMBLE_FILE)
        name = self._encoder or ensemble.encoder_id
        if name is None:
            raise RunError("the ensemble names no encoder; add --encoder NAME")
        if self._encoder is None:
            check_trusted(name, allow_download=self._allow_download)
        batcher = self._batchers.get(name)
        if batcher is None:
            embedder = Embedder.open(name, cache=self._cache, device=self._device)
            batcher = Batcher(embedder, self.limits, self.metrics, name)
        head = head_file(batcher.encoder.id)
        files = (path / ENSEMBLE_FILE, path / RESIDUAL_FILE, path / head)
        stamps = tuple(map(file_stamp, files))
        # Pass the encoder rather than its name, so that runs share it.
        classifier = load(path, batcher.encoder, cache=self._cache, text_only=self._text_only)
        self._batchers[name] = batcher
        if self._started and not batcher.ready:
            batcher.start().result()
        digests = [hash_file(file) if file.is_file() else "" for file in files]
        return RunVersion(
            number=number,
            digest=hashlib.blake2b(" ".join(digests).encode(), digest_size=16).hexdigest(),
            loaded=datetime.now(UTC).isoformat(timespec="seconds"),
            classifier=classifier,
            batcher=batcher,
            card=_card(path),
            files=files,
            stamps=stamps,
        )

    def _retire_unused(self) -> None:
        used = {id(run.current.batcher) for run in self.runs.values()}
        for name, batcher in list(self._batchers.items()):
            if id(batcher) not in used:
                del self._batchers[name]
                batcher.retire()

    # --- start and watch -----------------------------------------------------------------------

    def start(self) -> None:
        """Start all encoders."""
        self._started = True
        for batcher in self._batchers.values():
            batcher.start()

    async def watch(self) -> None:
        """Reload changed runs, forever."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            await asyncio.to_thread(self.reload)


def _card(path: Path) -> str | None:
    """Return the model card of a run; None for an ensemble without measurements."""
    try:
        return card_markdown(read_run(path))
    except (PromptBoostError, OSError):
        return None

"""The fit command as a function."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptboost.config import AUTO, FitConfig
from promptboost.distributed import pool_folder
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import TextSource
from promptboost.progress import Progress, ProgressBars, is_interactive
from promptboost.report import write_card, write_report
from promptboost.run.fit import fit_run
from promptboost.run.run_folder import RunFolder
from promptboost.training.pool_rows import Executor, PoolRows, PoolTexts

if TYPE_CHECKING:
    from promptboost.distributed.engine import Placement
    from promptboost.run.tracker import Tracker


def fit(
    data: str | os.PathLike[str],
    run: str | os.PathLike[str],
    config: FitConfig | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    cache: bool = True,
    device: str | None = None,
    progress: Progress | None = None,
    trackers: Sequence["Tracker"] = (),
    placement: "Placement | None" = None,
    say: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> RunFolder:
    """Fit a classifier on a folder of images, evaluate it, and write a run with its report.

    It does what ``promptboost fit DATA -o RUN`` does.

    Parameters
    ----------
    data : str or path
        A folder with one folder of images per class, a CSV or JSON-lines file, ``"emoji"``, or a
        benchmark as ``NAME:FOLDER``.
    run : str or path
        The folder to write.
    config : FitConfig, optional
        The settings of the fit; `settings` replace some of them.
    overwrite, resume : bool, default=False
        Replace an existing run, or continue an interrupted one.
    cache : bool, default=True
        Read embeddings from the user's cache, and write new ones to it.
    device : str, optional
        The torch device of the encoder.
    progress : callable, optional
        Called with stage, done and total; by default it draws bars in notebooks and at the Python prompt.
    trackers, placement
        Experiment trackers, and where a large pool is embedded and composed on.
    say : callable, optional
        Called with remarks, one line each.
    **settings
        Settings by name, as in TOML files: ``shots=4``, ``prompts="sentences.json"``.

    Returns
    -------
    RunFolder
        The run: its `results`, `ensemble` and files. :func:`promptboost.load` makes a classifier of it.

    Examples
    --------
    >>> import tempfile
    >>> import promptboost
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = promptboost.fit("emoji", f"{folder}/run", encoder="fake:64-0", shots=2, views=0)
    ...     run.results.task.classes, len(run.ensemble)
    (20, 1)
    """
    merged = (config or FitConfig()).merged(settings)
    if "encoder" not in settings and config is None:
        merged = merged.merged({"encoder": AUTO})
    bars = ProgressBars(shown=is_interactive()) if progress is None else progress
    folder = RunFolder(Path(run))
    with ExitStack() as stack:
        executor: Executor = _LocalExecutor()
        if placement is not None:
            executor = stack.enter_context(pool_folder.PoolExecutor(placement, say))
        fit_run(
            os.fspath(data),
            folder.path,
            merged,
            overwrite=overwrite,
            resume=resume,
            cache=cache,
            device=device,
            progress=bars,
            finish=(write_report, write_card),
            trackers=trackers,
            executor=executor,
            say=say,
        )
    return folder


class _LocalExecutor:
    """Embed pools in this process: large ones on disk, others in memory."""

    def embed_pool(
        self, texts: PoolTexts, source: TextSource, folder: Path | None, progress: Progress
    ) -> PoolRows:
        """Embed a pool."""
        is_large = (
            isinstance(source, Encoder) and texts.n_bytes(source.dim) > pool_folder.MOST_IN_MEMORY
        )
        if is_large or (folder is not None and folder.exists()):
            return pool_folder.PoolExecutor().embed_pool(texts, source, folder, progress)
        return PoolRows.embed(texts, source, progress=progress)

"""The fit command as a function."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptboost.config import FitConfig
from promptboost.distributed.pool_folder import PoolExecutor
from promptboost.encoders.default import AUTO, named_encoder
from promptboost.progress import Progress, ProgressBars, is_interactive
from promptboost.report import write_card, write_report
from promptboost.run.fit import FitRequest, fit_run
from promptboost.run.run_folder import RunFolder

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
    ...     run.results.task.classes
    20
    """
    merged = (config or FitConfig()).merged(settings)
    if "encoder" not in settings and config is None:
        merged = merged.merged({"encoder": AUTO})
    merged = merged.merged({"encoder": tuple(map(named_encoder, merged.encoders))})
    bars = ProgressBars(shown=is_interactive()) if progress is None else progress
    folder = RunFolder(Path(run))
    with PoolExecutor(placement, say) as executor:
        request = FitRequest(
            os.fspath(data),
            folder.path,
            merged,
            overwrite,
            resume,
            cache,
            bars,
            device,
            finish=(write_report, write_card),
            trackers=tuple(trackers),
            executor=executor,
        )
        fit_run(request, say)
    return folder

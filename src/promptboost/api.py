"""``promptboost.fit``: the fit command as a function."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptboost.config import AUTO, FitConfig
from promptboost.data.source import load_data, save_images
from promptboost.distributed.pool_folder import PoolExecutor
from promptboost.errors import RunError
from promptboost.progress import Progress, ProgressBars, is_interactive
from promptboost.run.fit import fit_run
from promptboost.run.run_folder import RunFolder

if TYPE_CHECKING:
    from promptboost.distributed.engine import Placement
    from promptboost.llm.description import Describer
    from promptboost.run.tracker import Tracker


def fit(
    data: Any,
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
    describe: "Describer | None" = None,
    say: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> RunFolder:
    """Fit a classifier on a folder of images, evaluate it, and write a run with its report.

    It does what ``promptboost fit DATA -o RUN`` does.

    Parameters
    ----------
    data : str, path or container
        A folder with one folder of images per class, a CSV or JSON-lines file, a tar, ``"emoji"``, or a
        benchmark as ``NAME:FOLDER``. Or labeled images in memory, as for ``promptboost.data.load_data``: a
        Hugging Face or torchvision dataset, a data frame, rows or pairs. They are written to the folder
        ``RUN-images`` first, as later commands read them again.
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
        Experiment trackers, and where a large pool is embedded.
    describe : Describer, optional
        A language model that describes the classes first; see :mod:`promptboost.llm.description`.
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
    if not isinstance(data, str | os.PathLike):
        data = _saved(data, folder, overwrite=overwrite, resume=resume)
    options: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "cache": cache}
    options |= {"device": device, "progress": bars, "say": say}
    if describe is not None:
        merged = describe.describe(os.fspath(data), folder.path, merged, **options)
    fit_run(
        os.fspath(data),
        folder.path,
        merged,
        trackers=trackers,
        executor=PoolExecutor(placement, say),
        **options,
    )
    return folder


def _saved(data: Any, run: RunFolder, *, overwrite: bool, resume: bool) -> Path:
    """Write images that are in memory next to the run; return their folder."""
    run.check_free(overwrite=overwrite, resume=resume)
    folder = run.path.with_name(f"{run.path.name}-images")
    if folder.exists() and not (overwrite or resume):
        raise RunError(f"{folder} exists, where the images would be written: remove or rename it")
    folder.mkdir(parents=True, exist_ok=True)
    save_images(load_data(data), folder)
    return folder

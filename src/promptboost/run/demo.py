"""The demo: emoji as a folder of images, a fit, a transfer and an edit."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptboost.config import FitConfig
from promptboost.data.dataset import Dataset
from promptboost.data.emoji import load_emoji
from promptboost.errors import RunError
from promptboost.io import replacing, write_json
from promptboost.model.edits import Change
from promptboost.pool.readers import emoji_descriptions
from promptboost.progress import Progress, no_progress, stage
from promptboost.run.edit import EditedRun, edit_run
from promptboost.run.fit import fit_run
from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import transfer_run

SOURCE, TARGET, SHOTS = "conse:lite0", "conse:lite2", 4
EDIT = Change(
    kind="add", class_name="building", sentence="a tall building with many windows", share=0.4
)


@dataclass(frozen=True)
class Demo:
    """The folders of a demo and its results."""

    folder: Path
    images: int
    results: Results
    transfer: dict[str, Any]
    edited: EditedRun

    @property
    def run(self) -> Path:
        """The run folder of the fit."""
        return self.folder / "run"

    def record(self) -> dict[str, Any]:
        """Return a JSON-serializable dict."""
        return {
            "folder": self.folder,
            "images": self.images,
            "run": {"path": self.run, **self.results.record()},
            "transfer": self.transfer,
            "edit": {"path": self.edited.run, "effect": self.edited.effect},
        }


def run_demo(
    folder: Path,
    *,
    data: Dataset | None = None,
    encoders: tuple[str, str] = (SOURCE, TARGET),
    change: Change = EDIT,
    settings: FitConfig | None = None,
    cache: bool = True,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda _: None,
) -> Demo:
    """Write images and sentences, fit a run, transfer its text, and edit it into a second run.

    The runs of an earlier demo in `folder` are replaced.

    Writes ``images/``, ``sentences.json``, ``run/`` and ``run-edited/``. The `encoders` are that of
    the fit and that of the transfer; the `settings` have neither encoder nor sentences.
    """
    run, edited, images = folder / "run", folder / "run-edited", folder / "images"
    for path in (run, edited):
        RunFolder(path).check_free(overwrite=True, resume=False)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another name with -o")
    data = load_emoji() if data is None else data
    with stage(progress, "writing images", len(data)) as advance:
        for image in data.images:
            file = images / (image.split or "train") / image.label / f"{image.id.replace('/', '-')}"
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                with replacing(file) as partial:
                    image.open().save(partial, "PNG")
            advance()
    descriptions = emoji_descriptions()
    sentences = {name: descriptions[name] for name in data.class_names if name in descriptions}
    write_json(folder / "sentences.json", sentences)
    config = (settings or FitConfig(shots=SHOTS)).merged(
        {"encoder": encoders[0], "prompts": str(folder / "sentences.json")}
    )
    options: dict[str, Any] = {"cache": cache, "progress": progress}
    results = fit_run(str(images), run, config, overwrite=True, say=say, **options)
    transfer = transfer_run(run, encoders[1], text_only=True, **options)
    after = edit_run(run, [change], edited, overwrite=True, **options)
    return Demo(folder, len(data), results, transfer, after)

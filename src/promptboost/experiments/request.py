"""A comparison as it is asked for, and as it is remembered."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, RunError, SettingError
from promptboost.files import write_text
from promptboost.runs.settings import DEFAULT_ENCODER, FitSettings

__all__ = ["DEFAULT_METHODS", "CompareRequest", "check_same"]

#: What takes seconds: the others are asked for by name.
DEFAULT_METHODS = (
    "zero-shot",
    "zero-shot-80",
    "pool-mean",
    "logistic",
    "tip-adapter",
    "tip-adapter-f",
    "promptboost",
)


@dataclass(frozen=True)
class CompareRequest:
    """A comparison as it is asked for.

    Attributes
    ----------
    source : str
        Pictures, as for a fit.
    out : Path
        Folder of the results; what is there is not computed again.
    methods : tuple of str
        Names, perhaps with settings; ``"all"`` for every method that can be used here, besides
        those that are named.
    shots, seeds : tuple of int
        Pictures of each class to learn from, and draws of them.
    encoder : str
        The model to learn with.
    transfers : tuple of str
        Models to carry what was learnt to.
    words : FitSettings
        Of these settings, those about words and views count.
    cache, progress, device
        As for a fit.

    Examples
    --------
    >>> CompareRequest("emoji", Path("out")).shots
    (1, 2, 4, 8, 16)
    >>> CompareRequest("emoji", Path("out"), shots=(0,))
    Traceback (most recent call last):
    promptboost.errors.SettingError: shots is 0, but must be 1 or more
    """

    source: str
    out: Path
    methods: tuple[str, ...] = DEFAULT_METHODS
    shots: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: tuple[int, ...] = (1, 2, 3)
    encoder: str = DEFAULT_ENCODER
    transfers: tuple[str, ...] = ()
    words: FitSettings = field(default_factory=FitSettings)
    cache: bool = True
    progress: bool = True
    device: str | None = None

    def __post_init__(self) -> None:
        for name in ("methods", "shots", "seeds"):
            values = getattr(self, name)
            if not values:
                raise SettingError(f"{name} is empty: give one or more")
        for name in ("methods", "shots", "seeds", "transfers"):
            values = getattr(self, name)
            # Counted twice, it would weigh double in means and deviations.
            if len(set(values)) < len(values):
                raise SettingError(f"{name} names something twice: {', '.join(map(str, values))}")
        for count in self.shots:
            if count < 1:
                raise SettingError(f"shots is {count}, but must be 1 or more")
        if self.encoder in self.transfers:
            raise SettingError(
                f"{self.encoder} is the encoder to learn with; --transfer is for another one"
            )


def check_same(out: Path, about: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Remember what a folder of results is about, or refuse to mix it with something else.

    Parameters
    ----------
    out : Path
        The folder; made if it is not there.
    about : mapping of str to JSON values
        What every result depends on.
    say : callable
        Told when results are there already.
    """
    file = out / "compare.json"
    if not file.exists():
        if out.exists() and any(out.iterdir()):
            raise RunError(f"{out} is not empty and holds no comparison; choose another folder")
        out.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(dict(about), indent=2, ensure_ascii=False) + "\n")
        return
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = [name for name in about if before.get(name) != about[name]]
    except (ValueError, AttributeError) as error:
        raise FileFormatError(f"{file}: is cut off or not ours ({error})") from error
    if changed:
        raise RunError(
            f"the results in {out} were made with other {' and '.join(changed)}; choose another folder "
            "with -o, or remove that one"
        )
    say(f"going on with the results in {out}")

"""What a fit is asked to do, and the TOML file it is kept in."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from promptboost.errors import FileFormatError, SettingError

__all__ = ["DEFAULT_ENCODER", "PRESETS", "FitConfig", "read_config"]

#: Works on a machine that reaches no model hub. A CLIP model is better where one can be had.
DEFAULT_ENCODER = "conse:lite0"

Templates = Literal["own", "clip"]
OnBad = Literal["skip", "stop"]
Concatenation = Literal["none", "one", "all"]
Composer = Literal["gradient", "greedy"]


@dataclass(frozen=True)
class FitConfig:
    """Everything that decides what a fit gives, but for the images.

    Attributes
    ----------
    encoder : str
        Name of the model, see ``promptboost models``.
    shots : int or None
        Images of each class to learn from; None for all there are.
    seed : int
        Decides which images are drawn, which views a round sees, and ties.
    composer : {"gradient", "greedy"}
        How the sentences of a round are chosen: by steps down the logistic loss, or one after the other
        by the errors they mend, as in the paper.
    logit_scale : float or None
        What the gradient composer multiplies cosines with; None chooses it from the images to learn
        from, see :func:`promptboost.training.learner.settle_scale`.
    rounds : int
        Number of weak classifiers. The gradient composer needs no second one.
    views : int
        Random crops of each image to learn from. The crops of an image are the same for every
        seed, so that fits share their embeddings; the seed decides which of them a round sees.
    views_per_round : int or None
        How many of them a round sees, None for all; 0 composes on the images themselves. Few of
        them make the rounds of the greedy composer differ; the gradient composer needs no such thing.
    view_scale : float
        Smallest share of an image that a crop keeps.
    temperature : float
        Of the softmax over scores: lower makes boosting turn to mistakes sooner.
    max_copies : int or None
        For the greedy composer: most copies of a prompt that enter at once.
    patience : int or None
        Stop after this many rounds in a row that leave no error.
    prompts : str or None
        File with sentences about the classes.
    templates : {"own", "clip"}
        The 80 templates that come with promptboost, or CLIP's (needs open_clip).
    concatenate : {"none", "one", "all"}
        See :func:`promptboost.pool.build_pool`.
    on_bad : {"skip", "stop"}
        What to do about files that cannot be used.

    Examples
    --------
    >>> settings = FitConfig(shots=4)
    >>> settings.rounds, settings.merged({"rounds": 5}).rounds
    (1, 5)
    >>> FitConfig(rounds=0)
    Traceback (most recent call last):
    promptboost.errors.SettingError: rounds is 0, but must be 1 or more
    """

    encoder: str = DEFAULT_ENCODER
    shots: int | None = 16
    seed: int = 0
    composer: Composer = "gradient"
    logit_scale: float | None = None
    rounds: int = 1
    views: int = 8
    views_per_round: int | None = None
    view_scale: float = 0.5
    temperature: float = 1.0
    max_copies: int | None = None
    patience: int | None = None
    prompts: str | None = None
    templates: Templates = "own"
    concatenate: Concatenation = "none"
    on_bad: OnBad = "skip"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            _check_whole(name, getattr(self, name), least)
        for name in ("temperature", "view_scale", "logit_scale"):
            value = _checked_number(name, getattr(self, name))
            object.__setattr__(self, name, value)
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                allowed = " or ".join(map(repr, get_args(kind)))
                raise SettingError(f"{name} is {getattr(self, name)!r}, but must be {allowed}")
        for name, kind in (("encoder", str), ("prompts", str | None)):
            if not isinstance(getattr(self, name), kind):
                raise SettingError(f"{name} is {getattr(self, name)!r}, but must be a text")
        if self.view_scale > 1:
            raise SettingError(f"view_scale is {self.view_scale}, but is a share: at most 1")
        if self.views_per_round is not None and self.views_per_round > self.views:
            raise SettingError(
                f"views_per_round is {self.views_per_round}, but there are only {self.views} views "
                "of each image; ask for more views or fewer a round"
            )
        for name, composer in _ONLY_FOR.items():
            if getattr(self, name) is not None and self.composer != composer:
                raise SettingError(
                    f"{name} is {getattr(self, name)}, but only the {composer} composer has it, and "
                    f"the composer is {self.composer}; leave {name} out, or ask for the composer "
                    f"{composer} (--composer {composer})"
                )

    @property
    def views_seen(self) -> int:
        """How many views of an image a round sees."""
        return self.views if self.views_per_round is None else self.views_per_round

    def merged(self, changes: Mapping[str, Any]) -> "FitConfig":
        """Take some settings from elsewhere; an unknown name is an error."""
        return FitConfig(**{**asdict(self), **_known(changes)})

    def to_table(self) -> dict[str, Any]:
        """Return the settings as values that TOML can hold; what is not set is left out."""
        table = asdict(self)
        table |= {name: "all" for name in _MAY_BE_ALL if table[name] is None}
        return {name: value for name, value in table.items() if value is not None}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "FitConfig":
        """Read what :meth:`to_table` gives, or gave when there was no other composer."""
        return cls(**_known({"composer": "greedy", **table}))


def read_config(path: str | Path) -> dict[str, Any]:
    r"""Read the settings in a TOML file: at its top, or in its table ``[fit]``.

    A ``run.toml`` can be given too: a new fit then has the settings of that run.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "mine.toml"
    ...     _ = file.write_text('shots = 4\ntemplates = "clip"')
    ...     read_config(file)
    {'shots': 4, 'templates': 'clip'}
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingError(f"cannot read the settings {path}: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is not TOML: {error}") from error
    table = tables.get("fit", tables)
    if not isinstance(table, dict):
        raise FileFormatError(f"{path}: fit must be a table, [fit]")
    if "versions" in tables:  # written by a fit, perhaps when there was no other composer
        table = {"composer": "greedy", **table}
    try:
        return _known(table)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error


_LEAST = {
    "shots": 1,
    "seed": 0,
    "rounds": 1,
    "views": 0,
    "views_per_round": 0,
    "max_copies": 1,
    "patience": 1,
}
_MAY_BE_NONE = ("shots", "views_per_round", "max_copies", "patience", "logit_scale")
# What None is called in a file and on the command line.
_MAY_BE_ALL = ("shots", "views_per_round")
_ONLY_FOR = {"max_copies": "greedy", "logit_scale": "gradient"}
_CHOICES: dict[str, Any] = {
    "composer": Composer,
    "templates": Templates,
    "concatenate": Concatenation,
    "on_bad": OnBad,
}


def _check_whole(name: str, value: object, least: int) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        also = ', or "all"' if name in _MAY_BE_ALL else ""
        raise SettingError(f"{name} is {value!r}, but must be a whole number{also}")
    if value < least:
        raise SettingError(f"{name} is {value}, but must be {least} or more")


def _checked_number(name: str, value: object) -> float | None:
    if value is None and name in _MAY_BE_NONE:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise SettingError(f"{name} is {value!r}, but must be a number above 0")
    return float(value)


def _known(table: Mapping[str, Any]) -> dict[str, Any]:
    names = [field.name for field in fields(FitConfig)]
    if strange := sorted(set(table) - set(names)):
        raise SettingError(f"there is no setting {strange[0]!r}; there are {', '.join(names)}")
    values = dict(table)
    for name in _MAY_BE_ALL:
        if values.get(name) == "all":
            values[name] = None
    return values


_PAPER: dict[str, Any] = {
    "composer": "greedy",
    "rounds": 50,
    "views_per_round": 4,
    "temperature": 1.0,
}

#: Settings that go together, by name; each says something about the same ones.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {name: getattr(FitConfig(), name) for name in _PAPER},
    "paper": _PAPER,
}

"""Every setting of a fit, once: its name, type, default, limits and documentation.

The command line, TOML files, the estimator and the method ``promptboost`` are views of what is here.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from textwrap import fill
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from promptboost.errors import FileFormatError, SettingError
from promptboost.io import LARGEST_INTEGER, LARGEST_NUMBER, load_toml, read_bytes

#: The name that selects the default encoder.
AUTO = "auto"
#: Works on a machine that reaches no model hub.
DEFAULT_ENCODER = "conse:lite0"
#: More accurate, and used instead if it is available: see ``encoders/default.py``.
CLIP_ENCODER = "ViT-B-32/openai"

Templates = Literal["own", "clip"]
OnBad = Literal["skip", "stop"]
Concatenation = Literal["none", "one", "all"]
Composer = Literal["gradient", "greedy"]


def _setting(default: Any, text: str, **limits: Any) -> Any:
    """Return a field with its documentation and its limits, see :class:`Setting`."""
    return field(default=default, metadata={"help": text, **limits})


#: The most crops of an image that are taken by default, and how many of all images are enough.
MOST_CROPS, ENOUGH_CROPS = 8, 1024


@dataclass(frozen=True)
class InputConfig:
    """Settings about what a fit is given: encoder, images and prompts."""

    encoder: str | tuple[str, ...] = _setting(
        DEFAULT_ENCODER,
        "Model that embeds images and prompts; see 'promptboost models'. Sentences learned on several "
        "encoders transfer better to others.",
        several=True,
        usually=f"{CLIP_ENCODER} if open_clip is installed and its weights are available; the same "
        f"model as ONNX without torch, if its download is allowed; else {DEFAULT_ENCODER}",
    )
    shots: int | None = _setting(
        16,
        "Number of training images per class; the others are held out for evaluation.",
        least=1,
        none="all",
    )
    views: int | None = _setting(
        None,
        "Number of random crops per training image. Crops do not depend on the seed, so that fits share "
        "embeddings.",
        least=0,
        none=f"enough for {ENOUGH_CROPS:,} crops in all, {MOST_CROPS} of an image at most",
    )
    view_scale: float = _setting(
        0.5, "Smallest fraction of the image area in a crop.", above=0, most=1
    )
    prompts: str | None = _setting(
        None,
        'Sentences about the classes: a JSON file {"class": ["sentence", …], …}, a saved pool, or any '
        "other file that 'promptboost pool build' reads.",
        none="templates only",
        file=True,
    )
    templates: Templates = _setting(
        "own", "promptboost's own templates, or CLIP's 80 as published (needs open_clip)."
    )
    concatenate: Concatenation = _setting(
        "none",
        "Prefix each sentence with a filled template: none, the plain one, or each of all templates.",
    )
    on_bad: OnBad = _setting("skip", "Skip unreadable images, or stop at the first one.")


@dataclass(frozen=True)
class BoostConfig:
    """Settings about how prompts are chosen."""

    composer: Composer = _setting(
        "gradient",
        "Algorithm that composes the banks of a round: gradient descent on the logistic loss, or the "
        "paper's greedy search on the weighted error.",
    )
    rounds: int = _setting(
        1, "Number of boosting rounds. One is enough for the gradient composer.", least=1
    )
    views_per_round: int | None = _setting(
        None,
        "Number of crops per image drawn for each round; 0 uses the images without crops. With few crops "
        "the rounds of the greedy composer differ more.",
        least=0,
        none="all",
    )
    max_copies: int | None = _setting(
        None,
        "Maximum number of copies of a prompt added in one step.",
        least=1,
        none="no limit",
        only_for="greedy",
    )
    logit_scale: float | None = _setting(
        None,
        "Factor on cosine similarities: higher values fit the training images more closely.",
        above=0,
        most=10**6,
        none="chosen by cross-validation on the training images",
        only_for="gradient",
    )
    temperature: float = _setting(
        1.0,
        "Temperature of the softmax over scores. Lower values increase the weights of misclassified images "
        "faster.",
        above=0,
    )
    penalty: bool = _setting(
        True,
        "Rank prompts by the change of the weighted error per copy, or by the total change.",
        only_for="greedy",
    )
    patience: int | None = _setting(
        None,
        "Stop after this many consecutive rounds without a training error.",
        least=1,
        none="never",
    )
    copies: int = _setting(
        8,
        "Maximum number of prompts per class over all rounds, repetitions included; the weight of a prompt "
        "is its number of copies. Each round has at least one.",
        least=1,
        most=2**15,
        only_for="gradient",
    )
    sweeps: int = _setting(
        30, "Maximum number of passes over all classes.", least=1, only_for="gradient"
    )
    spread: float = _setting(
        2.0,
        "Strength of the regularization towards many different prompts.",
        least=0,
        only_for="gradient",
    )
    caution: float = _setting(
        0.3,
        "Robustness to wrong labels: the loss of an image is weighted by p**caution, p being the "
        "probability of its class. 0 is the logistic loss.",
        least=0,
        only_for="gradient",
    )
    tolerance: float = _setting(
        0.01,
        "Stop when the duality gap is below this fraction of the objective.",
        least=0,
        only_for="gradient",
    )
    residual: bool = _setting(
        True,
        "Fit a residual on image embeddings, or predict with the sentences only.",
        off="text-only",
    )
    seed: int = _setting(0, "Random seed of training images, crops per round, and ties.", least=0)

    def __post_init__(self) -> None:
        for name, value in checked(
            {entry.name: getattr(self, entry.name) for entry in fields(self)},
            settings_of(type(self)),
        ).items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class FitConfig(BoostConfig, InputConfig):
    """Everything that decides what a fit gives, except the images.

    Examples
    --------
    >>> config = FitConfig(shots=4)
    >>> config.rounds, config.merged({"rounds": 5}).rounds
    (1, 5)
    >>> FitConfig(rounds=0)
    Traceback (most recent call last):
    promptboost.errors.SettingError: rounds is 0, but must be 1 or more
    """

    @property
    def encoders(self) -> tuple[str, ...]:
        """The encoders to learn on, the first one first."""
        return (self.encoder,) if isinstance(self.encoder, str) else self.encoder

    def crops(self, n_images: int) -> int:
        """Return the number of crops per image for so many training images.

        Crops determine the metric of the residual, and their total is what counts. Rounds that draw a few
        of them have as many as ever to draw from. For zero images it is the most.

        Examples
        --------
        >>> FitConfig().crops(40), FitConfig().crops(600), FitConfig(views=4).crops(600)
        (8, 2, 4)
        """
        if self.views is not None:
            return self.views
        if self.views_per_round is not None:
            return max(MOST_CROPS, self.views_per_round)
        return min(-(-ENOUGH_CROPS // max(n_images, 1)), MOST_CROPS)

    @property
    def sees_crops(self) -> bool:
        """Whether a round sees crops."""
        return (self.views if self.views_per_round is None else self.views_per_round) != 0

    def merged(self, changes: Mapping[str, Any]) -> Self:
        """Take some settings from elsewhere; an unknown name is an error."""
        return type(self)(**{**asdict(self), **_known(changes)})

    def to_table(self) -> dict[str, Any]:
        """Return the settings as values for TOML, without those of None.

        What is None is left out unless it has a word, and so is what the composer does not have.
        """
        table = {}
        for name, setting in settings_of(FitConfig).items():
            value = getattr(self, name)
            if setting.only_for in (None, self.composer):
                table[name] = "all" if value is None and setting.none == "all" else value
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in table.items()
            if value is not None
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_table` gives."""
        return cls(**_known(table))


@dataclass(frozen=True)
class Setting:
    """What is known of one setting."""

    name: str  # in files and in Python; the command line has dashes for underscores
    kind: type  # int, float, bool or str
    default: Any
    help: str
    choices: tuple[str, ...] = ()  # all values, where there are few
    optional: bool = False  # whether it may be None
    none: str = ""  # what None means; the word "all" may be written for it
    least: float | None = None
    above: float | None = None
    most: float | None = None
    only_for: str | None = None  # the one composer that has it
    file: bool = False  # whether it names a file
    several: bool = False  # whether a list of values may be given
    off: str = ""  # the option that turns it off, where it has a name of its own
    usually: str = ""  # what commands take where nothing is typed, if that is not the default

    def checked(self, value: Any, called: str | None = None) -> Any:
        """Return the value as a plain Python one; raise if it is invalid."""
        if value is None and self.optional:
            return None
        if self.several and isinstance(value, list | tuple):
            values = tuple(self.checked(element, called) for element in value)
            if not values or len(set(values)) < len(values):
                odd = "names one twice" if values else "is an empty list"
                raise SettingError(f"{called or self.name} {odd}: give each once")
            return values[0] if len(values) == 1 else values
        if problem := self._problem(value):
            raise SettingError(f"{called or self.name} is {_shown(value)}, but must be {problem}")
        return self.kind(value)

    def _problem(self, value: Any) -> str | None:
        """Return what the value should be, where it is something else."""
        if self.choices:
            return None if value in self.choices else " or ".join(map(repr, self.choices))
        if self.kind in (bool, str):
            expected = "True or False" if self.kind is bool else "a text"
            return None if isinstance(value, self.kind) else expected
        # True is a number in Python, but not a valid setting.
        number = not isinstance(value, bool) and isinstance(value, Real)
        # Whole numbers are finite, but may have more digits than a float can have.
        number = number and (isinstance(value, Integral) or math.isfinite(value))
        if self.kind is int and not (number and isinstance(value, Integral)):
            return "a whole number" + (', or "all"' if self.none == "all" else "")
        kind = "" if self.kind is int else "a number, "
        if self.above is not None and not (number and value > self.above):
            return f"a number above {self.above}"
        if not number or (self.least is not None and value < self.least):
            return f"{kind}{self.least} or more"
        largest = LARGEST_INTEGER if self.kind is int else LARGEST_NUMBER
        most = largest if self.most is None else self.most
        if self.above == 0 and value < 1 / LARGEST_NUMBER:  # something is divided by it
            return f"at least {1 / LARGEST_NUMBER:g}"
        return f"at most {most}" if value > most else None

    @property
    def default_text(self) -> str:
        """The default, as written in help texts."""
        return self.usually or (self.none if self.default is None else self.text_of(self.default))

    def text_of(self, value: Any) -> str:
        """Return a value as written in help texts: switches by the names of their options."""
        if self.kind is not bool:
            return str(value)
        name = self.name if value else self.off or f"no-{self.name}"
        return f"--{name.replace('_', '-')}"

    def documentation(self, called: str | None = None) -> str:
        """Return the entry of a numpydoc list of parameters."""
        kind = f"{{{', '.join(map(repr, self.choices))}}}" if self.choices else self.kind.__name__
        kind += " or None" if self.optional else ""
        meaning = f" None: {self.none}." if self.optional else ""
        composer = f" Only for the {self.only_for} composer." if self.only_for else ""
        text = fill(
            f"{self.help}{meaning}{composer}", 94, initial_indent="    ", subsequent_indent="    "
        )
        return f"{called or self.name} : {kind}, default={self.default!r}\n{text}"


def _shown(value: Any) -> str:
    # Python refuses to write numbers of thousands of digits.
    huge = isinstance(value, int) and abs(value) > LARGEST_INTEGER
    return "too large" if huge else f"{value!r:.200}"


def settings_of(config: type) -> Mapping[str, Setting]:
    """Return the settings of a configuration by name, in order.

    Fields that a subclass adds without a documentation of their own are not among them.
    """
    hints = get_type_hints(config)
    settings = {}
    for option in fields(config):
        if "help" not in option.metadata:
            continue
        hint = hints[option.name]
        kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
        choices = get_args(kinds[0]) if get_origin(kinds[0]) is Literal else ()
        kind = str if choices else kinds[0]
        optional = type(None) in kinds
        settings[option.name] = Setting(
            option.name, kind, option.default, choices=choices, optional=optional, **option.metadata
        )
    return settings


def checked(
    values: Mapping[str, Any],
    settings: Mapping[str, Setting],
    called: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Check settings one by one and together, and return them as plain values.

    Values without a setting are left out; `called` has other names to use in messages.
    """
    names = {**{name: name for name in settings}, **(called or {})}
    plain = {
        name: setting.checked(values[name], names[name])
        for name, setting in settings.items()
        if name in values
    }
    seen, views = plain.get("views_per_round"), plain.get("views")
    if seen is not None and views is not None and seen > views:
        raise SettingError(
            f"{names['views_per_round']} is {seen}, but there are only {views} views of each image; "
            f"set {names['views']} to {seen} or more, or {names['views_per_round']} to {views} or less"
        )
    composer = plain.get("composer")
    for name, value in plain.items():
        setting = settings[name]
        if composer and setting.only_for not in (None, composer) and value != setting.default:
            raise SettingError(
                f"{names[name]} is {value}, but only the {setting.only_for} composer has it, and the "
                f"composer is {composer}; leave {names[name]} out, or ask for the composer "
                f"{setting.only_for} (--composer {setting.only_for}; composer={setting.only_for!r} in "
                "Python)"
            )
    return plain


def read_config(path: str | Path) -> dict[str, Any]:
    """Read the settings in a TOML file: at its top, or in its table ``[fit]``, as in a ``run.toml``."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise SettingError(f"cannot read the settings {path}: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is not TOML: {error}") from error
    tables = load_toml(text, str(path))
    top = {name: value for name, value in tables.items() if name != "scale"}
    table = tables.get("fit", top)
    if not isinstance(table, dict):
        raise FileFormatError(f"{path}: fit must be a table, [fit]")
    loose = [name for name, value in top.items() if not isinstance(value, dict)]
    if "fit" in tables and loose:
        raise SettingError(f"{path}: {loose[0]} is above [fit]: move it below")
    try:
        return _known(table)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error


def _known(table: Mapping[str, Any]) -> dict[str, Any]:
    settings = settings_of(FitConfig)
    if strange := sorted(set(table) - set(settings)):
        raise SettingError(f"there is no setting {strange[0]!r}; there are {', '.join(settings)}")
    return {
        name: None if value == "all" and settings[name].none == "all" else value
        for name, value in table.items()
    }


def documented(names: Iterable[str], called: Mapping[str, str]) -> str:
    """Return the numpydoc entries of some settings, by the names they have elsewhere."""
    settings = settings_of(FitConfig)
    return "\n".join(settings[name].documentation(called.get(name)) for name in names)


#: The paper's number of rounds on ImageNet.
IMAGENET_ROUNDS = 30

_PAPER: dict[str, Any] = {
    "templates": "clip",
    "concatenate": "one",
    "composer": "greedy",
    "rounds": 50,
    "views_per_round": 4,
    "temperature": 1.0,
    "residual": False,
}

#: Named groups of settings.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {name: getattr(FitConfig(), name) for name in _PAPER},
    "paper": _PAPER,
}

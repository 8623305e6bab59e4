"""From the name a user types to a method: built in, registered, or of an installed package."""

import dataclasses
import inspect
import math
import re
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from promptboost.errors import SettingError
from promptboost.methods.base import Method
from promptboost.plugins import PluginWarning, import_object, load_plugins

ENTRY_POINTS = "promptboost.methods"

#: The class of a method, or a function that makes one.
Factory = Callable[..., Method]


@dataclass(frozen=True)
class MethodRecord:
    """A method that can be asked for by name, its label in a few words, and what makes it.

    The factory is ``package.module:Class``, imported when it is asked for; or the class itself, or a
    function without arguments that makes the method. The preset are settings of this name.
    """

    name: str
    label: str
    factory: str | Factory
    preset: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Factory:
        """Return the factory, imported."""
        factory = import_object(self.factory) if isinstance(self.factory, str) else self.factory
        if not _is_factory(factory):
            raise SettingError(
                f"{self.name}: {self.factory} is not a method; it must be a class that derives from "
                "promptboost.methods.Method, or a function that makes one"
            )
        return factory


# Name, what it is, where it is in this package, and the settings that make this name of it.
_BUILT_IN: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("zero-shot", "zero-shot, “a photo of a {}.”", "methods.sentence_means:ZeroShot", {}),
    (
        "zero-shot-dataset",
        "zero-shot, the benchmark's own template",
        "methods.sentence_means:ZeroShot",
        {"template": "dataset"},
    ),
    (
        "zero-shot-80",
        "zero-shot, mean of the templates",
        "methods.sentence_means:ZeroShot",
        {"template": "all"},
    ),
    (
        "waffle",
        "WaffleCLIP, random words and letters, re-implemented",
        "methods.sentence_means:WaffleCLIP",
        {},
    ),
    ("dclip", "DCLIP descriptors, re-implemented", "methods.sentence_means:DCLIP", {}),
    ("cupl", "CuPL sentences, re-implemented", "methods.sentence_means:CuPL", {}),
    (
        "cupl+templates",
        "CuPL sentences and the templates, re-implemented",
        "methods.sentence_means:CuPL",
        {"templates": True},
    ),
    ("pool-mean", "mean of the whole pool", "methods.sentence_means:PoolMean", {}),
    ("proapo", "ProAPO, re-implemented", "methods.proapo:ProAPO", {}),
    ("llmbo", "LLMbo, re-implemented", "methods.llmbo:LLMbo", {}),
    ("pez", "PEZ, re-implemented", "methods.learned_tokens:PEZ", {}),
    ("coop", "CoOp, re-implemented", "methods.learned_tokens:CoOp", {}),
    ("promptsrc", "PromptSRC, re-implemented", "methods.promptsrc:PromptSRC", {}),
    ("logistic", "logistic regression on the images", "methods.linear_probes:Logistic", {}),
    ("tip-adapter", "Tip-Adapter, re-implemented", "methods.tip_adapter:TipAdapter", {}),
    (
        "tip-adapter-f",
        "Tip-Adapter-F, re-implemented",
        "methods.tip_adapter:TipAdapter",
        {"tuned": True},
    ),
    ("lp++", "LP++, re-implemented", "methods.linear_probes:LPPlusPlus", {}),
    ("clap", "CLAP, re-implemented", "methods.clap:CLAP", {}),
    ("promptboost", "promptboost, its default", "methods.promptboost:Boosting", {}),
    (
        "tpb",
        "text prompt boosting with the paper's settings, re-implemented",
        "methods.promptboost:Boosting",
        {"composer": "greedy", "rounds": 50, "views_per_round": 4, "residual": False},
    ),
)


class _Methods(Mapping[str, MethodRecord]):
    """The methods by name. Installed packages are looked at when a name is not built in."""

    def __init__(self) -> None:
        self._records = {
            name: MethodRecord(name, label, f"promptboost.{place}", preset)
            for name, label, place, preset in _BUILT_IN
        }
        self._plugins: dict[str, MethodRecord] = {}
        self._loaded: dict[str, object] | None = None

    def __getitem__(self, name: str) -> MethodRecord:
        return self._records[name] if name in self._records else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def add(self, record: MethodRecord) -> None:
        """Add a method, if its name can be typed and is not taken by another."""
        self._check(record)
        self._records[record.name] = record

    def _check(self, record: MethodRecord) -> None:
        if not record.name or re.search(r"[?&,:\s]", record.name) or record.name == "all":
            raise SettingError(
                f"a method cannot be called {record.name!r}: write a name without spaces, commas, "
                "colons, ? and &, other than all"
            )
        registered = self._records.get(record.name)
        if registered is not None and registered.factory != record.factory:
            raise SettingError(f"there is a method {record.name!r} already; choose another name")

    def _all(self) -> dict[str, MethodRecord]:
        loaded = load_plugins(ENTRY_POINTS)
        if loaded is not self._loaded:
            self._loaded, self._plugins = loaded, {}
            for name, factory in loaded.items():
                self._add_plugin(name, factory)
        return {**self._records, **self._plugins}

    def _add_plugin(self, name: str, factory: object) -> None:
        try:
            if not _is_factory(factory):
                raise SettingError(f"{factory!r} is neither a subclass of Method nor a function")
            record = MethodRecord(name, _label(factory, name), factory)  # type: ignore[arg-type]
            self._check(record)
            self._plugins[name] = record
        except SettingError as error:
            warnings.warn(
                f"The plugin {name} of the group {ENTRY_POINTS} is left out: {error}.",
                PluginWarning,
                stacklevel=2,
            )


#: Every method by its name, in the order in which tables show them.
METHODS = _Methods()


def register_method(name: str, factory: str | Factory, *, label: str = "") -> None:
    """Make a method known by a name: ``compare``, :func:`make_method` and :data:`METHODS` have it.

    A package does the same for all its users with an entry point in the group
    ``promptboost.methods``: ``name = "package.module:Class"``.

    Parameters
    ----------
    name : str
        What a user types; must not be taken.
    factory : str or callable
        A subclass of :class:`Method`, where it is (``"package.module:Class"``, imported when the
        method is asked for), or a function without arguments that makes the method.
    label : str, optional
        What it is, in a few words; by default the first line of its docstring.

    See Also
    --------
    promptboost.testing.check_method : tells what a method still lacks.

    Examples
    --------
    >>> register_method("tpb", "my_package.boosting:Boosting")
    Traceback (most recent call last):
    promptboost.errors.SettingError: there is a method 'tpb' already; choose another name
    """
    METHODS.add(MethodRecord(name, label or _label(factory, name), factory))


def make_method(spelling: str) -> Method:
    """Make the method that a name stands for; raise a SettingError if there is no such.

    Parameters
    ----------
    spelling : str
        A name in :data:`METHODS`, or ``package.module:Class`` for a class of another package; and
        perhaps settings: ``tpb?rounds=5&views_per_round=0``. All characters stand for themselves,
        but ``%26`` is a ``&`` and ``%25`` a ``%``.

    Examples
    --------
    >>> make_method("zero-shot?template=a drawing of a {}.").template
    'a drawing of a {}.'
    >>> make_method("pezz")
    Traceback (most recent call last):
    promptboost.errors.SettingError: there is no method 'pezz'; did you mean pez?
    """
    name, _, query = spelling.partition("?")
    if ":" in name:
        record = MethodRecord(name, name, name)
    elif name in METHODS:
        record = METHODS[name]
    else:
        raise SettingError(f"there is no method {name!r}; {_offer(name)}")
    factory = record.load()
    if not isinstance(factory, type):
        usual = factory()
        return dataclasses.replace(usual, **_settings(name, type(usual), query))  # type: ignore[type-var]
    settings = {**record.preset, **_settings(name, factory, query)}
    needed = [item.name for item in _fields(name, factory) if _is_required(item)]
    if missing := [key for key in needed if key not in settings]:
        raise SettingError(f"{name} needs {missing[0]}: type {name}?{missing[0]}=…")
    method: Method = factory(**settings)
    return method


def names_method(text: str) -> bool:
    """Tell whether a text names a method, with or without settings; nothing is made."""
    name = text.partition("?")[0]
    if re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", name):
        # Names of description sources have colons too; no package has their name.
        return find_spec(name.partition(":")[0].partition(".")[0]) is not None
    return name in METHODS


def spelled(method: Method) -> str:
    """Return the name of a method and its settings that are not the default: what makes it again.

    Examples
    --------
    >>> spelled(make_method("zero-shot-80"))
    'zero-shot?template=all'
    """
    settings = [
        f"{item.name}={_spelled_value(getattr(method, item.name))}"
        for item in dataclasses.fields(method)  # type: ignore[arg-type]
        if getattr(method, item.name) != item.default
    ]
    kind = type(method)
    place = f"{kind.__module__}:{kind.__qualname__}"
    record = METHODS.get(getattr(kind, "name", ""))
    name = kind.name if record is not None and record.factory in (kind, place) else place
    return "?".join([name, "&".join(settings)] if settings else [name])


def _spelled_value(value: Any) -> str:
    text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return text.replace("%", "%25").replace("&", "%26")


def _is_factory(factory: object) -> bool:
    return issubclass(factory, Method) if isinstance(factory, type) else callable(factory)


def _label(factory: object, name: str) -> str:
    text = inspect.getdoc(factory) if isinstance(factory, type) else None
    return text.splitlines()[0].rstrip(".") if text else name


def _is_required(item: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return item.init and item.default is missing and item.default_factory is missing


def _fields(name: str, kind: type[Method]) -> tuple["dataclasses.Field[Any]", ...]:
    if not dataclasses.is_dataclass(kind):
        raise SettingError(f"{name} is not a dataclass; a method's settings are its fields")
    return dataclasses.fields(kind)


def _settings(name: str, kind: type[Method], query: str) -> dict[str, Any]:
    """Read the settings that follow a name."""
    known = [item.name for item in _fields(name, kind)]
    hints = get_type_hints(kind)
    settings: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, _, text = part.partition("=")
        if key in settings:
            raise SettingError(f"{name}: {key} is given twice; give it once")
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise SettingError(f"{name} has no setting {key!r}; {has}")
        settings[key] = _value(name, key, unquote(text), hints[key])
    return settings


def _value(method: str, key: str, text: str, hint: Any) -> Any:
    """Read a setting as the type of its field; ``none`` where it may be None."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(None) in kinds and text.lower() == "none":
        return None
    kind = next(kind for kind in kinds if kind is not type(None))
    if kind is bool:
        if text.lower() in ("true", "false", "on", "off"):
            return text.lower() in ("true", "on")
        raise SettingError(f"{method}: {key} is {text!r}, but must be true or false")
    if kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            what = "a whole number" if kind is int else "a number"
            raise SettingError(f"{method}: {key} is {text!r}, but must be {what}")
        return number
    return text


def _offer(name: str) -> str:
    if name == "eft":
        return (
            "EFT carries another method to another encoder: name that method, and the encoder with "
            "--transfer"
        )
    close = get_close_matches(name, METHODS, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(METHODS)}"

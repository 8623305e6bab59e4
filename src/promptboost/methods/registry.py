"""The registry of methods: built in, registered, or plugins of installed packages."""

import inspect
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, get_args, get_type_hints
from urllib.parse import unquote

import msgspec

from promptboost.errors import SettingError
from promptboost.methods.base import Method
from promptboost.plugins import PluginWarning, import_object, load_plugins

ENTRY_POINTS = "promptboost.methods"


@dataclass(frozen=True)
class MethodRecord:
    """A method in the registry.

    The class may be given as ``package.module:Class``. The preset has the settings that belong to this
    name.
    """

    name: str
    label: str
    factory: str | type[Method]
    preset: str = ""

    def load(self) -> type[Method]:
        """Return the class, imported."""
        kind = import_object(self.factory) if isinstance(self.factory, str) else self.factory
        if not (isinstance(kind, type) and issubclass(kind, Method) and is_dataclass(kind)):
            raise SettingError(
                f"{self.name}: {self.factory} is not a method; it must be a dataclass that derives from "
                "promptboost.methods.Method"
            )
        return kind


# Label, and the class with the settings that belong to the name.
_BUILT_IN = {
    "zero-shot": ("zero-shot, “a photo of a {}.”", "sentence_means:ZeroShot"),
    "zero-shot-dataset": (
        "zero-shot, the benchmark's own template",
        "sentence_means:ZeroShot?template=dataset",
    ),
    "template-mean": ("zero-shot, mean of the templates", "sentence_means:ZeroShot?template=all"),
    "waffle": ("WaffleCLIP, random words and letters, re-implemented", "sentence_means:WaffleCLIP"),
    "dclip": ("DCLIP descriptors, re-implemented", "sentence_means:DCLIP"),
    "cupl": ("CuPL sentences, re-implemented", "sentence_means:CuPL"),
    "cupl+templates": (
        "CuPL sentences and the templates, re-implemented",
        "sentence_means:CuPL?templates=true",
    ),
    "pool-mean": ("mean of the whole pool", "sentence_means:PoolMean"),
    "proapo": ("ProAPO, re-implemented", "proapo:ProAPO"),
    "llmbo": ("LLMbo, re-implemented", "llmbo:LLMbo"),
    "pez": ("PEZ, re-implemented", "learned_tokens:PEZ"),
    "coop": ("CoOp, re-implemented", "learned_tokens:CoOp"),
    "promptsrc": ("PromptSRC, re-implemented", "promptsrc:PromptSRC"),
    "logistic": ("logistic regression on the images", "linear_probes:Logistic"),
    "tip-adapter": ("Tip-Adapter, re-implemented", "tip_adapter:TipAdapter"),
    "tip-adapter-f": ("Tip-Adapter-F, re-implemented", "tip_adapter:TipAdapter?tuned=true"),
    "lp++": ("LP++, re-implemented", "linear_probes:LPPlusPlus"),
    "clap": ("CLAP, re-implemented", "linear_probes:CLAP"),
    "cross-modal": ("cross-modal linear probe, re-implemented", "linear_probes:CrossModal"),
    "gda": ("GDA, re-implemented", "gaussian:GDA"),
    "timo": ("TIMO, re-implemented", "gaussian:TIMO"),
    "proker": ("ProKeR, re-implemented", "proker:ProKeR"),
    "promptboost": ("promptboost, its default", "promptboost:Boosting"),
    "tpb": (
        "text prompt boosting with the paper's settings, re-implemented",
        "promptboost:Boosting?composer=greedy&rounds=50&views_per_round=4&residual=false",
    ),
}


class _Methods(Mapping[str, MethodRecord]):
    """The methods by name; plugins are loaded when a name is not built in."""

    def __init__(self) -> None:
        self._records = {
            name: MethodRecord(name, label, f"promptboost.methods.{kind}", preset)
            for name, (label, path) in _BUILT_IN.items()
            for kind, _, preset in [path.partition("?")]
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
        """Add a method; raise a SettingError if its name is invalid or taken."""
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
                try:
                    record = MethodRecord(name, name, factory)  # type: ignore[arg-type]  # checked
                    self._check(record)
                    self._plugins[name] = replace(record, label=_label(record.load()))
                except SettingError as error:
                    warnings.warn(
                        f"The plugin {name} of the group {ENTRY_POINTS} is left out: {error}.",
                        PluginWarning,
                        stacklevel=2,
                    )
        return {**self._records, **self._plugins}


#: Every method by its name, in the order in which tables show them.
METHODS = _Methods()


def register_method(name: str, factory: str | type[Method], *, label: str = "") -> None:
    """Register a method for ``compare``, :func:`make_method` and :data:`METHODS`.

    Packages can use an entry point in the group ``promptboost.methods`` instead: ``name =
    "package.module:Class"``.

    Parameters
    ----------
    name : str
        Name on the command line; must not be taken.
    factory : str or type
        A subclass of :class:`Method`, or its location (``"package.module:Class"``, imported when needed).
    label : str, optional
        A short description; by default the first line of its docstring.

    See Also
    --------
    promptboost.testing.check_method : lists what a method lacks.

    Examples
    --------
    >>> register_method("tpb", "my_package.boosting:Boosting")
    Traceback (most recent call last):
    promptboost.errors.SettingError: there is a method 'tpb' already; choose another name
    """
    METHODS.add(
        MethodRecord(
            name, label or (name if isinstance(factory, str) else _label(factory)), factory
        )
    )


def make_method(spelling: str) -> Method:
    """Return the method of a name with settings; raise a SettingError if there is none.

    Parameters
    ----------
    spelling : str
        A name in :data:`METHODS`, or ``package.module:Class``, optionally with settings:
        ``tpb?rounds=5&views_per_round=0``. In values ``%26`` is a ``&`` and ``%25`` a ``%``.

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
    kind = record.load()
    settings = _settings(name, kind, record.preset) | _settings(name, kind, query)
    for field in fields(kind):  # type: ignore[arg-type]
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in settings:
            raise SettingError(f"{name} needs {field.name}: type {name}?{field.name}=…")
    return kind(**settings)


def names_method(text: str) -> bool:
    """Return whether a text is the name of a method, with or without settings."""
    name = text.partition("?")[0]
    if re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", name):
        # Names of description sources have colons, too, but no such package exists.
        return find_spec(name.partition(":")[0].partition(".")[0]) is not None
    return name in METHODS


def _label(kind: type[Method]) -> str:
    return (inspect.getdoc(kind) or kind.__name__).splitlines()[0].rstrip(".")


def _settings(name: str, kind: type[Method], query: str) -> dict[str, Any]:
    """Parse the settings after a name."""
    allowed = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    settings: dict[str, Any] = {}
    for setting in filter(None, query.split("&")):
        key, _, text = setting.partition("=")
        if key in settings:
            raise SettingError(f"{name}: {key} is given twice; give it once")
        if key not in allowed:
            has = f"it has {', '.join(allowed)}" if allowed else "it has none"
            raise SettingError(f"{name} has no setting {key!r}; {has}")
        settings[key] = _value(name, key, unquote(text), hints[key])
    return settings


_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _value(method: str, key: str, text: str, hint: Any) -> Any:
    """Parse a setting as the type of its field, or ``none`` if it is optional."""
    kinds = get_args(hint)
    if type(None) in kinds:
        if text.lower() == "none":
            return None
        hint = next(kind for kind in kinds if kind is not type(None))
    if hint not in _KINDS:
        return text
    switches = {"on": "true", "off": "false"} if hint is bool else {}
    try:
        value: float = msgspec.convert(switches.get(text.lower(), text), hint, strict=False)
    except msgspec.ValidationError:
        value = math.nan
    if not math.isfinite(value):
        raise SettingError(f"{method}: {key} is {text!r}, but must be {_KINDS[hint]}")
    return value


def _offer(name: str) -> str:
    if name == "eft":
        return (
            "EFT transfers another method to another encoder: name that method, and the encoder with "
            "--transfer"
        )
    close = get_close_matches(name, METHODS, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(METHODS)}"

"""From the name a user types to a method."""

import dataclasses
import math
import types
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from promptboost.errors import SettingError
from promptboost.methods.base import Method

__all__ = ["METHODS", "MethodRecord", "make_method", "spelled"]


@dataclass(frozen=True)
class MethodRecord:
    """A method that can be asked for by name.

    Attributes
    ----------
    name : str
        What a user types.
    label : str
        What it is, in a few words.
    place : str
        ``module:class`` inside this package; imported when it is asked for.
    preset : dict
        Settings that make this name of it.
    """

    name: str
    label: str
    place: str
    preset: dict[str, Any] = dataclasses.field(default_factory=dict)


_RECORDS = (
    MethodRecord("zero-shot", "zero-shot, “a photo of a {}.”", "zero_shot:ZeroShot"),
    MethodRecord(
        "zero-shot-dataset",
        "zero-shot, the benchmark's own template",
        "zero_shot:ZeroShot",
        {"template": "dataset"},
    ),
    MethodRecord(
        "zero-shot-80",
        "zero-shot, mean of the templates",
        "zero_shot:ZeroShot",
        {"template": "all"},
    ),
    MethodRecord("dclip", "DCLIP descriptors, re-implemented", "dclip:DCLIP"),
    MethodRecord("cupl", "CuPL sentences, re-implemented", "cupl:CuPL"),
    MethodRecord(
        "cupl+templates",
        "CuPL sentences and the templates, re-implemented",
        "cupl:CuPL",
        {"templates": True},
    ),
    MethodRecord("pool-mean", "mean of the whole pool", "cupl:PoolMean"),
    MethodRecord("proapo", "ProAPO, re-implemented", "proapo.proapo:ProAPO"),
    MethodRecord("llmbo", "LLMbo, re-implemented", "llmbo.llmbo:LLMbo"),
    MethodRecord("pez", "PEZ, re-implemented", "pez:PEZ"),
    MethodRecord("coop", "CoOp, re-implemented", "coop:CoOp"),
    MethodRecord("promptsrc", "PromptSRC, re-implemented", "promptsrc.promptsrc:PromptSRC"),
    MethodRecord("logistic", "logistic regression on the images", "logistic:Logistic"),
    MethodRecord("tip-adapter", "Tip-Adapter, re-implemented", "tip_adapter:TipAdapter"),
    MethodRecord(
        "tip-adapter-f",
        "Tip-Adapter-F, re-implemented",
        "tip_adapter:TipAdapter",
        {"tuned": True},
    ),
    MethodRecord("promptboost", "promptboost, its default", "promptboost:Boosting"),
    MethodRecord(
        "tpb",
        "text prompt boosting with the paper's settings, re-implemented",
        "promptboost:Boosting",
        {"composer": "greedy", "rounds": 50, "views_per_round": 4},
    ),
)

#: Every method by its name, in the order in which tables show them.
METHODS: dict[str, MethodRecord] = {record.name: record for record in _RECORDS}


def make_method(spelling: str) -> Method:
    """Make the method that a name stands for.

    Parameters
    ----------
    spelling : str
        A name in :data:`METHODS`, and perhaps settings: ``tpb?rounds=5&views_per_round=0``. All
        characters stand for themselves, but ``%26`` is a ``&`` and ``%25`` a ``%``.

    Raises
    ------
    SettingError
        If the name or a setting is unknown; the message says what there is.

    Examples
    --------
    >>> make_method("zero-shot?template=a drawing of a {}.").template
    'a drawing of a {}.'
    >>> make_method("pezz")
    Traceback (most recent call last):
    promptboost.errors.SettingError: there is no method 'pezz'; did you mean pez?
    """
    name, _, query = spelling.partition("?")
    record = METHODS.get(name)
    if record is None:
        raise SettingError(f"there is no method {name!r}; {_offer(name)}")
    module, _, class_name = record.place.partition(":")
    kind: type[Method] = getattr(import_module(f"promptboost.methods.{module}"), class_name)
    types_by_name = get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    settings = dict(record.preset)
    given: set[str] = set()
    for part in filter(None, query.split("&")):
        key, _, text = part.partition("=")
        if key in given:
            raise SettingError(f"{name}: {key} is given twice; give it once")
        given.add(key)
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise SettingError(f"{name} has no setting {key!r}; {has}")
        settings[key] = _value(name, key, unquote(text), types_by_name[key])
    return kind(**settings)


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
    return "?".join([method.name, "&".join(settings)] if settings else [method.name])


def _spelled_value(value: Any) -> str:
    text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return text.replace("%", "%25").replace("&", "%26")


def _value(method: str, key: str, text: str, hint: Any) -> Any:
    """Read a setting as the type of its field; ``none`` where it may be None."""
    union = get_origin(hint) in (Union, types.UnionType)
    kinds = [t for t in get_args(hint) if t is not type(None)] if union else [hint]
    if union and type(None) in get_args(hint) and text.lower() == "none":
        return None
    kind = kinds[0]
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
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

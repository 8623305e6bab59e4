"""Options shared by several commands; those for settings of a fit come from the configuration."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.output import Command, Interrupted, echo
from promptboost.config import PRESETS, FitConfig, Setting, settings_of
from promptboost.errors import SettingError

if TYPE_CHECKING:
    from promptboost.cli.output import Output
    from promptboost.distributed.engine import Placement

COUNT = click.IntRange(min=1)
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)

overwrite_option = click.option("--overwrite", is_flag=True, help="Replace the run in the folder.")
data_option = click.option("--data", help="Images of the fit, if they were moved.")
text_only_option = click.option(
    "--text-only", is_flag=True, help="Use only the text, without the residual."
)


def _use_threads(ctx: click.Context, param: click.Parameter, count: int | None) -> None:
    # Before numpy is imported, which reads the number of threads once.
    if ctx.resilient_parsing:
        return
    from promptboost.threads import keep_to_limit, set_threads

    if count is None:
        keep_to_limit()
    else:
        set_threads(count)


threads_option = click.option(
    "--threads",
    type=COUNT,
    callback=_use_threads,
    expose_value=False,
    help="Number of threads; results do not depend on it. Default: the number of cores.",
)


def _not_nan(ctx: Any, param: Any, value: float | None) -> float | None:
    if value is not None and value != value:  # click's ranges include nan
        raise click.BadParameter("nan is not in the range 0<=x<=1.", ctx, param)
    return value


def share_option(name: str, help_text: str, metavar: str = "SHARE") -> Callable[[Command], Command]:
    """Return an option for a number from 0 to 1."""
    kind = click.FloatRange(0, 1)
    return click.option(name, type=kind, callback=_not_nan, metavar=metavar, help=help_text)


min_probability_option = share_option(
    "--min-probability",
    "Predict only if the best class is at least this probable; other images are unsure.",
    "P",
)
run_argument = click.argument("run", type=PATH)


def output_option(
    help_text: str | None = None, name: str = "output", **options: Any
) -> Callable[[Command], Command]:
    """Return the option ``-o`` for a path, required by default."""
    options = {"required": True, "type": PATH, **options}
    return click.option("-o", "--output", name, help=help_text, **options)


def default_option(
    name: str, kind: Any, default: Any, help_text: str
) -> Callable[[Command], Command]:
    """Return an option with a default that ``--help`` shows."""
    return click.option(name, type=kind, default=default, show_default=True, help=help_text)


def model_options(required: bool) -> Callable[[Command], Command]:
    """Return the options for a language model and its server."""
    return with_options(
        [
            click.option("--model", required=required, help="Name of the language model."),
            click.option("--base-url", help="URL of its server, such as http://localhost:8000/v1."),
            default_option(
                "--provider",
                click.Choice(["openai", "anthropic"]),
                "openai",
                "Protocol of the server; most are compatible with OpenAI.",
            ),
        ]
    )


def _none_if_empty(ctx: Any, param: Any, values: tuple[str, ...]) -> tuple[str, ...] | None:
    return values or None


def with_options(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command in the given order."""
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


def encoder_names(ctx: Any, param: Any, typed: str) -> list[str]:
    """Return the names of encoders for shell completion."""
    from promptboost.encoders.registry import MODELS

    return [record.name for record in MODELS if record.name.startswith(typed)]


def encoder_option(help_text: str) -> Callable[[Command], Command]:
    """Return an option for one encoder; without it, use :func:`default_encoder`."""
    usual = settings_of(FitConfig)["encoder"].default_text
    text = f"{help_text} Default: {usual}."
    return click.option("--encoder", help=text, shell_complete=encoder_names)


def default_encoder(out: "Output", *, allow_download: bool = False) -> str:
    """Choose an encoder, and print which and why; ask in a terminal before ONNX towers are downloaded."""
    from promptboost.encoders.default import chosen_encoder

    def consent(question: str) -> bool:
        if allow_download:
            return True
        return not out.json and sys.stdin.isatty() and click.confirm(question, err=True)

    choice = chosen_encoder(consent)
    out.note(str(choice))
    return choice.name


class _BatchSize(click.IntRange):
    name = "auto|N"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


#: How encoders run; :func:`with_output` applies batch size and precision to all that the command loads.
device_options = with_options(
    [
        click.option(
            "--device",
            help="Device of the encoder, such as cpu or cuda:1. Default: the fastest available.",
        ),
        threads_option,
        click.option(
            "--batch-size",
            type=_BatchSize(min=1),
            help="Images of a batch. Default: auto, which is 64, or up to 256 on a GPU.",
        ),
        click.option(
            "--precision",
            type=click.Choice(["fp16", "bf16", "fp32"]),
            help="Number type of the encoder's networks, which becomes a part of its name. Default: fp16 "
            "on CUDA, else fp32.",
        ),
    ]
)
#: Options for embeddings, passed to the command as `opening` by :func:`with_output`.
embedding_options = with_options(
    [
        click.option("--no-cache", is_flag=True, help="Do not read or write stored embeddings."),
        device_options,
    ]
)
#: The same for the encoder of a run.
opening_options = with_options(
    [
        click.option(
            "--allow-download",
            is_flag=True,
            help="Download the encoder of the run, or the default one, from a model hub if it is not on "
            "this machine.",
        ),
        embedding_options,
    ]
)


#: Options for parallel work.
engine_options = with_options(
    [
        click.option(
            "--on",
            default="local",
            show_default=True,
            metavar="local|ray|ray://HOST:PORT",
            help="Where to run: in this process, on the local Ray cluster (or all cores of this machine), "
            "or on another cluster.",
        ),
        click.option(
            "--workers",
            type=COUNT,
            help="Number of Ray processes. Default: one per GPU, or as many as fit the cores.",
        ),
        click.option("--cores", type=COUNT, help="Cores per worker. Default: 1."),
    ]
)

#: Options for parallel work in parts; see :func:`placement`.
on_options = with_options(
    [
        engine_options,
        click.option(
            "--shard",
            metavar="I/N",
            help="Run only part I of N, counted from 0, without Ray: for array jobs.",
        ),
        click.option("--merge", is_flag=True, help="Merge the parts once all are done."),
    ]
)


def placement(options: dict[str, Any]) -> "Placement | None":
    """Take the options for parallel work out of `options` and return the placement.

    Return None if there are none: the work is then done in this process, without shards.
    """
    names = ("on", "workers", "cores", "storage", "per_shard")
    scale = {name: options.pop(name) for name in names if name in options}
    shard, merge = options.pop("shard", None), options.pop("merge", False)
    if not merge and {shard, *scale.values()} <= {None, "local"}:
        return None
    from promptboost.distributed.engine import Placement, Share

    return Placement(**scale, share=None if shard is None else Share.parse(shard), merge=merge)


#: Options for work in shards.
shard_options = with_options(
    [
        on_options,
        click.option(
            "--storage",
            metavar="DIR|URL",
            help="Folder or URL of the shard results, visible to all machines, such as s3://….",
        ),
        click.option(
            "--per-shard",
            type=click.IntRange(min=1, max=65536),
            help="Approximate size of a shard. Default: 512 images, 4,096 texts.",
        ),
    ]
)


@contextmanager
def resumable(note: str = "what is done is kept", *, when: bool = True) -> Iterator[None]:
    """Turn Ctrl-C into the hint to run the same command again."""
    try:
        yield
    except KeyboardInterrupt:
        if when:
            raise Interrupted(f"the same command again; {note}") from None
        raise


def resumable_shards(placement: "Placement | None") -> AbstractContextManager[None]:
    """Return :func:`resumable` for work in shards."""
    in_shards = placement is not None and placement.in_shards
    return resumable("shards that are done are kept", when=in_shards)


#: Format of the output.
layout_option = click.option(
    "--format",
    "layout",
    type=click.Choice(["table", "csv", "jsonl"]),
    default="table",
    show_default=True,
)

#: Options for another encoder than that of the fit.
other_encoder_options = with_options(
    [
        click.option("--encoder", help="Use this encoder instead of the one of the fit."),
        text_only_option,
    ]
)

#: Options for the encoders of a run.
encoder_options = with_options(
    [
        click.option(
            "--encoder",
            multiple=True,
            callback=_none_if_empty,
            help="Use this encoder instead of the one of the fit. Given several times, their "
            "probabilities are averaged.",
        ),
        click.option(
            "--average",
            is_flag=True,
            help="Average the probabilities of all encoders that the run was fitted on.",
        ),
        text_only_option,
    ]
)


def check_encoders(options: dict[str, Any]) -> None:
    """Raise if ``--average`` and ``--encoder`` are combined."""
    if options["average"] and options["encoder"]:
        raise SettingError("--average uses all encoders of the run: remove --encoder")


_ALL_OPTIONS = f"{__name__}.all_options"


class ShortHelpCommand(click.Command):
    """A command of many options: ``--help`` prints the `essential` ones, ``--help-all`` all of them."""

    def __init__(self, *args: Any, essential: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._essential = {*essential, "help_all"}
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._print_all,
                help="Show all options and exit.",
            )
        )

    def _print_all(self, ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[_ALL_OPTIONS] = True
            echo(ctx.get_help())
            ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the essential options, or all of them."""
        shown = [
            p for p in self.get_params(ctx) if _ALL_OPTIONS in ctx.meta or p.name in self._essential
        ]
        with formatter.section("Options"):
            formatter.write_dl([row for p in shown if (row := p.get_help_record(ctx)) is not None])


class Names(click.ParamType[Any]):
    """Comma-separated names."""

    name = "A,B,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Parse the value."""
        if isinstance(value, tuple):
            return value
        return tuple(name.strip() for name in value.split(",") if name.strip())


class Methods(Names):
    """Comma-separated methods, possibly with settings."""

    name = "A,B?SETTING=VALUE,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Parse the value."""
        from promptboost.methods.registry import names_method

        spellings: list[str] = []
        for name in super().convert(value, param, ctx):
            # Settings such as templates may contain commas.
            if spellings and "?" in spellings[-1] and name != "all" and not names_method(name):
                spellings[-1] += f", {name}" if "{}" in spellings[-1] else f",{name}"
            else:
                spellings.append(name)
        return tuple(spellings)


class Numbers(Names):
    """Comma-separated integers."""

    name = "1,2,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Parse the value."""
        try:
            return tuple(map(int, super().convert(value, param, ctx)))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 1,2,4", param, ctx)


class _NumberOrAll(click.ParamType[Any]):
    name = "N|all"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "all" or isinstance(value, int):
            return value
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor 'all'", param, ctx)


def config_options(
    names: Iterable[str] | None = None, *, presets: bool = False
) -> Callable[[Any], Any]:
    """Return a decorator that adds options for settings, None by default."""
    settings = settings_of(FitConfig)
    chosen = [settings[name] for name in (settings if names is None else names)]
    return with_options([_option(setting, presets=presets) for setting in chosen])


def _option(setting: Setting, *, presets: bool) -> Callable[[Any], Any]:
    name, text = f"--{setting.name.replace('_', '-')}", _help(setting, presets)
    kind: Any = setting.kind
    if kind is bool:
        off = setting.off or f"no-{name[2:]}"
        return click.option(f"{name}/--{off}", default=None, help=text)
    if setting.none == "all":
        kind = _NumberOrAll()
    elif setting.choices:
        kind = click.Choice(setting.choices)
    elif setting.file:
        kind = click.Path()
    several: dict[str, Any] = {}
    if setting.several:
        text += " May be given several times."
        several = {"multiple": True, "callback": _none_if_empty}
        if setting.name == "encoder":
            several["shell_complete"] = encoder_names
    return click.option(name, type=kind, help=text, **several)


def _help(setting: Setting, presets: bool) -> str:
    composer = f"Only for the {setting.only_for} composer. " if setting.only_for else ""
    default = f"Default: {setting.default_text}"
    paper = PRESETS["paper"].get(setting.name, setting.default)
    if presets and paper != setting.default:
        default += f"; {setting.text_of(paper)} with --preset paper"
    return f"{setting.help} {composer}{default}."

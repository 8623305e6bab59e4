"""Options that several commands have; those for settings of a fit come from the configuration."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from promptboost.cli.output import Command, Interrupted
from promptboost.config import PRESETS, SCALE, FitConfig, Setting, read_scale, settings_of
from promptboost.errors import SettingError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from promptboost.cli.output import Output
    from promptboost.distributed.engine import Placement

device_option = click.option(
    "--device", help="Where the encoder runs, such as cpu or cuda:1. Default: the fastest there is."
)
allow_download_option = click.option(
    "--allow-download",
    is_flag=True,
    help="Get the encoder that the run names from a model hub, if it is not on this machine.",
)


def _use_threads(ctx: click.Context, param: click.Parameter, count: int | None) -> None:
    # Before numpy is loaded, so that its threads are as many from the start.
    if ctx.resilient_parsing:
        return
    from promptboost.threads import keep_to_limit, set_threads

    if count is None:
        keep_to_limit()
    else:
        set_threads(count)


threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    callback=_use_threads,
    expose_value=False,
    help="Threads to compute in; no result depends on it. Default: the cores there are.",
)


def _number(ctx: Any, param: Any, value: float | None) -> float | None:
    if value is not None and value != value:  # a range lets it pass
        raise click.BadParameter("nan is not in the range 0<=x<=1.", ctx, param)
    return value


min_probability_option = click.option(
    "--min-probability",
    type=click.FloatRange(0, 1),
    callback=_number,
    metavar="P",
    help="Answer only where the best class is at least this probable; other images are unsure.",
)
run_argument = click.argument("run", type=click.Path(path_type=Path))


def with_options(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Return what adds options to a command, in their order."""
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


def encoder_names(ctx: Any, param: Any, typed: str) -> list[str]:
    """Return the encoders that a shell may complete."""
    from promptboost.encoders.registry import MODELS

    return [record.name for record in MODELS if record.name.startswith(typed)]


def image_sources(ctx: Any, param: Any, typed: str) -> "list[CompletionItem[Any]]":
    """Return what a shell may complete for images: files and folders, and the word emoji."""
    from click.shell_completion import CompletionItem

    words = [CompletionItem("emoji")] if typed and "emoji".startswith(typed) else []
    return words or [CompletionItem(typed, type="file")]


def encoder_option(help_text: str) -> Callable[[Command], Command]:
    """Return an option for one encoder, which is None if nothing is typed: see :func:`default_encoder`."""
    usual = settings_of(FitConfig)["encoder"].default_text
    text = f"{help_text} Default: {usual}."
    return click.option("--encoder", help=text, shell_complete=encoder_names)


def default_encoder(out: "Output") -> str:
    """Choose the encoder that nobody named, and tell which it is and why."""
    from promptboost.encoders.default import chosen_encoder

    choice = chosen_encoder()
    out.note(str(choice))
    return choice.name


#: The options about embeddings.
embeds = with_options(
    [
        click.option("--no-cache", is_flag=True, help="Compute all embeddings, and keep none."),
        device_option,
        threads_option,
    ]
)


def _use_scale(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    # Before the options that it has a say in are read: what is typed wins over it.
    if path is not None and not ctx.resilient_parsing:
        scale = read_scale(path)
        if not param.expose_value and not scale:  # the command reads nothing else of it
            raise SettingError(f'{path} has no table [scale], such as:  [scale]  on = "ray"')
        ctx.default_map = {**(ctx.default_map or {}), **scale}
    return path


def config_file_option(help_text: str, *, expose_value: bool) -> Callable[[Command], Command]:
    """Return an option for a TOML file, whose table ``[scale]`` stands for :data:`shard_options`."""
    return click.option(
        "--config",
        type=click.Path(),
        is_eager=True,
        callback=_use_scale,
        expose_value=expose_value,
        help=f"{help_text} What is typed here wins.",
    )


#: The options about who does the work.
engine_options = with_options(
    [
        click.option(
            "--on",
            default="local",
            show_default=True,
            metavar="local|ray|ray://HOST:PORT",
            help="Where the work is done: in this process, on the Ray cluster that runs here (or all "
            "cores of this machine), or on one elsewhere.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            help="Processes on Ray. Default: one for each GPU, or as many as there are cores for.",
        ),
        click.option(
            "--cores", type=click.IntRange(min=1), help="Cores for each worker. Default: 1."
        ),
    ]
)

#: The options about where work is done, and which part of it; :func:`placement` reads them.
on_options = with_options(
    [
        engine_options,
        config_file_option(
            "A TOML file that says where work is done, in its table [scale]: on, workers, cores, storage, "
            "per_shard.",
            expose_value=False,
        ),
        click.option(
            "--shard",
            metavar="I/N",
            help="Do only part I of N, counted from 0, without Ray: for array jobs.",
        ),
        click.option(
            "--merge", is_flag=True, help="Check that all parts are done, and put them together."
        ),
    ]
)


def placement(options: dict[str, Any]) -> "Placement | None":
    """Remove the options about where work is done from all options, and return what they mean.

    Without any of them, the result is None: the work is done in this process, and not in shards.
    """
    asked = {name: options.pop(name) for name in SCALE if name in options}
    shard, merge = options.pop("shard", None), options.pop("merge", False)
    if not merge and {shard, *asked.values()} <= {None, "local"}:
        return None
    from promptboost.distributed.engine import Placement, Share

    source = click.get_current_context().get_parameter_source
    of_file = {name for name in asked if source(name) is ParameterSource.DEFAULT_MAP}
    # What is typed wins: a file may speak of Ray where somebody types that it is not wanted.
    if "on" in of_file and (shard is not None or merge):
        asked["on"] = "local"
    if asked["on"] == "local":
        asked |= dict.fromkeys(of_file & {"workers", "cores"})
    return Placement(**asked, share=None if shard is None else Share.parse(shard), merge=merge)


#: The same for what is done in shards.
shard_options = with_options(
    [
        on_options,
        click.option(
            "--storage",
            metavar="DIR|URL",
            help="Where the results of shards are kept: a folder that all machines see, or a URL such as "
            "s3://….",
        ),
        click.option(
            "--per-shard",
            type=click.IntRange(min=1, max=65536),
            help="About how many images or texts make a shard. Default: 512 images, 4,096 texts.",
        ),
    ]
)


@contextmanager
def shards_are_kept(place: "Placement | None") -> Iterator[None]:
    """Tell whoever interrupts work in shards that it can go on."""
    try:
        yield
    except KeyboardInterrupt:
        if place is not None and place.in_shards:
            raise Interrupted("the same command again; shards that are done are kept") from None
        raise


#: How answers are printed.
layout_option = click.option(
    "--format",
    "layout",
    type=click.Choice(["table", "csv", "jsonl"]),
    default="table",
    show_default=True,
)

#: The options about what a run sees with.
seen_with_options = with_options(
    [
        click.option(
            "--encoder",
            "encoders",
            multiple=True,
            help="Use this encoder instead of the one of the fit. Given several times, their "
            "probabilities are averaged.",
        ),
        click.option(
            "--average",
            is_flag=True,
            help="Average the probabilities of all encoders that the run was fitted on.",
        ),
        click.option(
            "--text-only", is_flag=True, help="Answer by the words alone, without the residual."
        ),
    ]
)


def check_seen_with(encoders: Sequence[str], average: bool) -> None:
    """Raise if all encoders of the run and some others are asked for at once."""
    if average and encoders:
        raise SettingError("--average means all encoders of the run: leave --encoder out")


class Names(click.ParamType[Any]):
    """Names with commas between."""

    name = "A,B,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read what was typed."""
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())


class Methods(Names):
    """Methods with commas between, each perhaps with settings."""

    name = "A,B?SETTING=VALUE,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read what was typed."""
        from promptboost.methods.registry import names_method

        spellings: list[str] = []
        for part in super().convert(value, param, ctx):
            # A setting may hold commas, such as a template: what names no method belongs to it.
            if spellings and "?" in spellings[-1] and part != "all" and not names_method(part):
                spellings[-1] += f", {part}" if "{}" in spellings[-1] else f",{part}"
            else:
                spellings.append(part)
        return tuple(spellings)


class Numbers(Names):
    """Whole numbers with commas between."""

    name = "1,2,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read what was typed."""
        try:
            return tuple(int(part) for part in super().convert(value, param, ctx))
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
    """Return a decorator that adds options for settings; what is not typed is None."""
    settings = settings_of(FitConfig)
    chosen = [settings[name] for name in (settings if names is None else names)]

    return with_options([_option(setting, presets=presets) for setting in chosen])


def _typed(ctx: Any, param: Any, values: tuple[str, ...]) -> tuple[str, ...] | None:
    return values or None


def _option(setting: Setting, *, presets: bool) -> Callable[[Any], Any]:
    name = setting.name.replace("_", "-")
    kind: Any = setting.kind
    if setting.none == "all":
        kind = _NumberOrAll()
    elif setting.choices:
        kind = click.Choice(setting.choices)
    elif setting.file:
        kind = click.Path()
    if setting.kind is bool:
        off = setting.off or f"no-{name}"
        return click.option(f"--{name}/--{off}", default=None, help=_help(setting, presets))
    if setting.several:
        text = f"{_help(setting, presets)} May be given several times."
        return click.option(
            f"--{name}",
            type=kind,
            multiple=True,
            callback=_typed,
            help=text,
            shell_complete=encoder_names if name == "encoder" else None,
        )
    return click.option(f"--{name}", type=kind, help=_help(setting, presets))


def _help(setting: Setting, presets: bool) -> str:
    composer = f"Only for the {setting.only_for} composer. " if setting.only_for else ""
    default = f"Default: {setting.default_text}"
    paper = PRESETS["paper"].get(setting.name, setting.default)
    if presets and paper != setting.default:
        default += f"; {paper} with --preset paper"
    return f"{setting.help} {composer}{default}."

"""Speaking: the command ``promptboost``. The file of a command is imported when it is called."""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

try:
    import click

    from promptboost.cli.output import INTERRUPTED, Output, echo, guarded, prepare_streams, speaks
    from promptboost.errors import command_name
except KeyboardInterrupt:  # before there is anything that could be said
    sys.exit(130)

__all__ = ["main", "promptboost"]

# What a shell sets to ask what could follow, whatever path the program was called by.
_COMPLETION_VARIABLE = "_PROMPTBOOST_COMPLETE"

# In the order of use. Help comes from here, so that listing commands imports none of them.
_COMMANDS = {
    "demo": "See it work on emoji: start here.",
    "fit": "Learn a classifier made of sentences from labeled images.",
    "predict": "Predict the class of images.",
    "explain": "Explain predictions, sentence by sentence.",
    "show": "Read what was learned.",
    "edit": "Edit the sentences of a run into a new run, and measure the effect.",
    "workbench": "Edit a run in the browser.",
    "diff": "Compare the sentences of two runs.",
    "issues": "List images to look at: wrong labels, copies, outliers.",
    "evaluate": "Measure a run on other labeled images.",
    "export": "Write a run for programs without promptboost: a matrix, or one ONNX file.",
    "push": "Send a run to a model hub.",
    "pull": "Get a run from a model hub.",
    "transfer": "Move a run to another encoder: the same text, other vectors.",
    "refit": "Learn and measure again beside an edited text.",
    "compare": "Compare methods on the same images and draws.",
    "paper": "Run the paper's tables and figures, and see its numbers beside yours.",
    "pool": "Check, join and read files of sentences about classes.",
    "serve": "Answer over HTTP: predictions, sentences, metrics.",
    "report": "Write the report and the model card of a run again.",
    "models": "List encoders and the name to type for each.",
    "data": "Check the benchmarks of the papers: what is there, what is missing.",
    "embed": "Embed images and texts ahead of time.",
    "cache": "Show, check or clear the embedding store.",
    "doctor": "Check what is installed and what works.",
    "completion": "Print the script that completes commands in bash, zsh or fish.",
}

# Commands that share a file; the others have one of their name.
_HOMES = {
    **dict.fromkeys(("models", "embed", "cache", "doctor"), "encoders"),
    **dict.fromkeys(("diff", "report"), "show"),
    **dict.fromkeys(("transfer", "refit"), "evaluate"),
    **dict.fromkeys(("push", "pull"), "export"),
    "workbench": "edit",
    "data": "paper",
}

_COMPLETION_EPILOG = """
\b
bash  promptboost completion bash > ~/.local/share/bash-completion/completions/promptboost
zsh   promptboost completion zsh > ~/.zfunc/_promptboost    (with fpath+=~/.zfunc before compinit)
fish  promptboost completion fish > ~/.config/fish/completions/promptboost.fish
"""

_HELP = """A few labeled images in, an image classifier made of plain sentences out.

\b
promptboost demo                       see it work
promptboost fit my-images -o run       learn: one folder of images for each class
promptboost predict run new-image.jpg  predict its class
"""

_EPILOG = """
\b
Exit codes
  0    done
  1    a fault in promptboost itself
  2    something given cannot be used, or is missing
  130  interrupted; a fit says how to go on

\b
Environment
  PROMPTBOOST_CACHE    folder of the embedding store
  PROMPTBOOST_ENCODER  encoder to use where none is given
  PROMPTBOOST_STATE    folder of unsaved edits of the workbench
  PROMPTBOOST_TOKEN    token that clients of promptboost serve must send
  PROMPTBOOST_DEBUG    1 shows where in the code an error comes from, as --debug does
"""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        module = import_module(f"promptboost.cli.{_HOMES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            from difflib import get_close_matches

            close = get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; see {command_name()} --help"
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from promptboost import __version__

        echo(f"promptboost {__version__}")
        ctx.exit()


@click.command(
    cls=_LazyGroup,
    help=_HELP,
    epilog=_EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show where errors come from.")
@click.pass_context
def promptboost(ctx: click.Context) -> None:
    """Hold the commands."""
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


@promptboost.command(name="completion", epilog=_COMPLETION_EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@speaks
def completion(out: Output, shell: str) -> None:
    """Write the script that makes a shell complete promptboost's commands and options.

    Open a new shell afterwards.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    script = kind(promptboost, {}, "promptboost", _COMPLETION_VARIABLE).source().strip()
    out.result({"shell": shell, "script": script}, script)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with an exit code (see ``promptboost --help``)."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    # Threads that spin while they wait slow each other down as soon as another program needs a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    atexit.register(_leave_quickly)
    try:
        prepare_streams()
        code = guarded(lambda: _invoke(typed), typed)
    except KeyboardInterrupt:  # a second one, while the first is dealt with
        code = INTERRUPTED
    sys.exit(code)


def _leave_quickly() -> None:
    """Spare the interpreter a look at every object that is left before it ends: a second or more."""
    # Their extensions would print a list of what they take for leaks.
    if not {"torch", "onnx"} & sys.modules.keys():
        gc.freeze()


def _invoke(typed: list[str]) -> int:
    _check_not_empty(typed)
    result: Any = promptboost.main(
        typed,
        prog_name=command_name(),
        complete_var=_COMPLETION_VARIABLE,
        standalone_mode=False,
    )
    return result if isinstance(result, int) else 0


def _check_not_empty(given: Sequence[str]) -> None:
    """Raise for an empty argument, such as of a variable that is not set: it would be this folder."""
    for number, argument in enumerate(given, start=1):
        if not argument.strip():
            before = f" after {given[number - 2]}" if number > 1 else ""
            raise click.UsageError(
                f"argument {number}{before} is empty; is a variable not set? See "
                f"{command_name()} --help"
            )
        if argument.startswith("--") and argument.endswith("="):
            raise click.UsageError(
                f"the option {argument[:-1]} is empty; see {command_name()} --help"
            )

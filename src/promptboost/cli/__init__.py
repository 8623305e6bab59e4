"""The command ``promptboost``. The module of a command is imported when it is called."""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

try:
    import click

    from promptboost import __version__
    from promptboost.cli.output import INTERRUPTED, echo, guarded, prepare_streams
    from promptboost.errors import command_name
except KeyboardInterrupt:
    sys.exit(130)

__all__ = ["main", "promptboost"]

# Set by shells for completion, whatever the path of the program.
_COMPLETION_VARIABLE = "_PROMPTBOOST_COMPLETE"

# By purpose, in the order of use. Listing the commands with these texts imports none of them.
_SECTIONS = {
    "Start": {
        "demo": "Run a demo on emoji images. Start here.",
        "fit": "Fit a classifier made of sentences to labeled images.",
        "predict": "Predict the class of images.",
        "doctor": "Check the installation.",
    },
    "Understand": {
        "show": "Show the sentences of a run.",
        "explain": "Explain predictions, sentence by sentence.",
        "report": "Rewrite the report and the model card of a run.",
        "suggest": "List the images to label next.",
        "issues": "List images with wrong labels, copies and outliers.",
        "evaluate": "Measure a run on other labeled images.",
    },
    "Change": {
        "edit": "Edit the sentences of a run into a new run, and measure the effect.",
        "workbench": "Edit a run in the browser.",
        "refit": "Learn residual and calibration again after an edit.",
        "diff": "Compare the sentences of two runs.",
        "pool": "Check, join, read and generate sentences about classes.",
    },
    "Use": {
        "transfer": "Move a run to another encoder, with the same text.",
        "serve": "Serve predictions over HTTP.",
        "export": "Write a run for programs without promptboost: a matrix, or one ONNX file.",
        "push": "Upload a run to a model hub.",
        "pull": "Download a run from a model hub.",
    },
    "Compare": {
        "compare": "Compare methods on the same images and draws.",
        "paper": "Reproduce the tables and figures of the paper.",
        "data": "Download and check the benchmarks of the papers.",
    },
    "Maintain": {
        "models": "List encoders by name.",
        "embed": "Embed images and texts ahead of time.",
        "cache": "Show, check or clear the embedding store.",
    },
}
_COMMANDS = {name: text for commands in _SECTIONS.values() for name, text in commands.items()}

# Commands in a module of another name.
_MODULES = {
    **dict.fromkeys(("models", "embed", "cache", "doctor"), "encoders"),
    **dict.fromkeys(("diff", "report"), "show"),
    **dict.fromkeys(("transfer", "refit"), "evaluate"),
    **dict.fromkeys(("push", "pull"), "export"),
    "suggest": "predict",
    "workbench": "edit",
}

_HELP = """A few labeled images in, an image classifier made of plain sentences out.

\b
promptboost demo                       run a demo
promptboost fit my-images -o run       fit: one folder of images for each class
promptboost predict run new-image.jpg  predict its class
"""

_EPILOG = """
\b
Exit codes
  0    done
  1    a bug in promptboost
  2    an input is missing or cannot be used
  130  interrupted; a fit prints how to resume

\b
Environment
  PROMPTBOOST_CACHE    folder of the embedding store
  PROMPTBOOST_ENCODER  default encoder
  PROMPTBOOST_STATE    folder of unsaved edits of the workbench
  PROMPTBOOST_TOKEN    token required by promptboost serve
  PROMPTBOOST_DEBUG    1 prints tracebacks, like --debug

\b
Completion in the shell
  bash  eval "$(_PROMPTBOOST_COMPLETE=bash_source promptboost)"
  zsh   eval "$(_PROMPTBOOST_COMPLETE=zsh_source promptboost)"
  fish  _PROMPTBOOST_COMPLETE=fish_source promptboost | source
"""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        module = import_module(f"promptboost.cli.{_MODULES.get(cmd_name, cmd_name)}")
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
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=12)


@click.command(
    cls=_LazyGroup,
    help=_HELP,
    epilog=_EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="promptboost %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Print tracebacks.")
@click.pass_context
def promptboost(ctx: click.Context) -> None:
    """Print help without a command."""
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit (see ``promptboost --help`` for exit codes)."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    # Spinning threads slow each other down when other programs need a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    atexit.register(_leave_quickly)
    try:
        prepare_streams()
        code = guarded(lambda: _invoke(typed), typed)
    except KeyboardInterrupt:  # a second one
        code = INTERRUPTED
    sys.exit(code)


def _leave_quickly() -> None:
    """Skip the garbage collection at exit, which takes a second or more."""
    # Their extensions would report leaks.
    if not {"torch", "onnx"} & sys.modules.keys():
        gc.freeze()


def _invoke(typed: list[str]) -> int:
    _check_not_empty(typed)
    result: Any = promptboost.main(
        typed, prog_name=command_name(), complete_var=_COMPLETION_VARIABLE, standalone_mode=False
    )
    return result if isinstance(result, int) else 0


def _check_not_empty(given: Sequence[str]) -> None:
    """Raise for an empty argument, such as an unset variable: it would mean this folder."""
    for number, argument in enumerate(given, start=1):
        if not argument.strip():
            where = f" after {given[number - 2]}" if number > 1 else ""
            raise click.UsageError(
                f"argument {number}{where} is empty; is a variable not set? See "
                f"{command_name()} --help"
            )
        if argument.startswith("--") and argument.endswith("="):
            raise click.UsageError(
                f"the option {argument[:-1]} is empty; see {command_name()} --help"
            )

"""``promptboost completion``: what a shell needs to complete commands, options, encoders and files."""

import click

from promptboost.cli.output import Output, speaks

#: What a shell sets to ask what could follow, whatever path the program was called by.
VARIABLE = "_PROMPTBOOST_COMPLETE"

_WHERE = """
\b
bash  promptboost completion bash > ~/.local/share/bash-completion/completions/promptboost
zsh   promptboost completion zsh > ~/.zfunc/_promptboost    (with fpath+=~/.zfunc before compinit)
fish  promptboost completion fish > ~/.config/fish/completions/promptboost.fish
"""


@click.command(name="completion", epilog=_WHERE)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@speaks
def completion(out: Output, shell: str) -> None:
    """Write the script that makes a shell complete promptboost's commands and options.

    Open a new shell afterwards.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    group = click.get_current_context().find_root().command
    script = kind(group, {}, "promptboost", VARIABLE).source().strip()
    out.result({"shell": shell, "script": script}, script)

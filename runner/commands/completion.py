"""What makes shells complete."""

from __future__ import annotations

import click

from runner.completing.scripts import SHELLS, script
from runner.usage import colour_option


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@colour_option
def completion(shell: str, colour: str) -> None:
    """Print the script that makes Tab complete in a shell.

    Commands, options, hosts, jobs, parameters, runs and schedules are completed by what is known
    here: no host is asked, nothing is written.

    \b
    To install it, one of:
      runner completion bash > ~/.local/share/bash-completion/completions/runner
      runner completion zsh > ~/.zfunc/_runner       (a folder of your $fpath)
      runner completion fish > ~/.config/fish/completions/runner.fish
    """
    click.echo(script(shell), nl=False)

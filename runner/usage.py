"""Click's part of the command line, in our words: options every command has, what was mistyped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from runner.errors import SpecError

LATER_COMMANDS = ("keep",)
_MEANT = {
    "ssh": "shell or ssh-config",
    "exec": "shell",
    "login": "shell",
    "logs": "tail",
    "log": "tail",
    "run": "submit",
    "kill": "cancel",
    "stop": "cancel",
    "ls": "ps",
    "jupyter": "lab",
}
"""What others call a command of ours, where no likeness of names tells."""
Function = TypeVar("Function", bound=Callable[..., Any])


def split_argv(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The argv before the first `--`, and what stands after it (None when there is no `--`)."""
    words = list(argv)
    if "--" not in words:
        return words, None
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def output_options(function: Function) -> Function:
    """`--json` and `--color`, which every command takes."""
    json_option = click.option(
        "as_json", "--json", is_flag=True, help="One JSON document on stdout."
    )
    return json_option(colour_option(function))


def colour_option(function: Function) -> Function:
    """`--color` alone, where stdout is a job's own."""
    return click.option(
        "colour",
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="Colours; auto: on a terminal only.",
    )(function)


class Commands(click.Group):
    """A group that lists its commands as they were written and knows which come later."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A group alone shows its help, as an answer and not as a mistake."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, or SpecError with the nearest name."""
        if self.get_command(ctx, args[0]) is None:
            raise _no_command(args[0], self.list_commands(ctx), ctx.command_path)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of their definition, which is that of a day's work."""
        return list(self.commands)


def _no_command(name: str, known: Sequence[str], path: str) -> SpecError:
    from runner.fields import did_you_mean, said

    shown = name if name.replace("-", "").isalnum() else said(name)
    if name in LATER_COMMANDS:
        return SpecError(f"{shown} is not in this version yet", f"{path} --help")
    close = did_you_mean(name, known)
    if path == "runner" and name in _MEANT:
        close = f" (did you mean {_MEANT[name]}?)"
    return SpecError(f"{shown} is no command{close}", f"{path} --help")


def usage_error(error: click.UsageError) -> SpecError:
    """What Click complains about: subject first, one line, and where to read more."""
    path = error.ctx.command_path if error.ctx else "runner"
    advice = f"{path} --help"
    if isinstance(error, click.NoSuchOption):
        return SpecError(_no_option(error, path), advice)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        context = error.ctx or click.Context(click.Command(path))
        return SpecError(f"{path} needs {error.param.make_metavar(context)}", advice)
    text = error.message.rstrip(".").replace("\n", " ")
    if isinstance(error, click.BadParameter) and error.param is not None:
        return SpecError(f"{error.param.opts[0]}: {text}", advice)
    return SpecError(text[:1].lower() + text[1:], advice)


def _no_option(error: click.NoSuchOption, path: str) -> str:
    from runner.fields import near

    # Click counts the dashes, too: to it --foo is like --color
    known = {each.lstrip("-"): each for each in error.possibilities or ()}
    name = near(error.option_name.lstrip("-"), known)
    close = f" (did you mean {known[name]}?)" if name else ""
    return f"{error.option_name} is no option of {path}{close}"

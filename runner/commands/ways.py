"""Ways into a worker: a shell, ssh, Jupyter Lab, TensorBoard."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.commands.invocation import Invocation, open_output, open_project, read_keys
from runner.errors import RunnerError, SpecError
from runner.usage import colour_option, output_options

if TYPE_CHECKING:
    from runner.app.context import Context
    from runner.app.logins import Door
    from runner.output import Output

_MOST_GPUS = 1024
_stop_option = click.option("--stop", is_flag=True, help="End it on the host; forward nothing.")


@click.command()
@click.argument("words", metavar="host=H [gpus=N] [image=I] [-- CMD ARG…]", nargs=-1)
@colour_option
@click.pass_obj
def shell(invocation: Invocation, words: Sequence[str], colour: str) -> int:
    """Open a shell in a host's worker, or run a command there.

    It goes through your connection to the host: no port is open anywhere. The argv after -- is
    the argv run, in the workspace; its status is the command's. It sees no GPU; with gpus=N
    it is a run that leases them (it waits for its turn, ps shows it) and ends with the session.

    \b
    Examples:
      runner shell host=gpu1
      runner shell host=gpu1 gpus=1
      runner shell host=gpu1 -- du -sh checkpoints
    """
    keys = read_keys(words, "host", "gpus", "image")
    door, ctx, out = _open(keys, "shell", False, colour)
    from runner.app import doors, logins

    command = invocation.command or []
    if invocation.command is not None and not command:
        raise SpecError("there is no command after --", "runner shell --help")
    if any("\0" in word for word in command):
        raise SpecError("the command has a NUL in it")
    gpus = _number(keys, "gpus", _MOST_GPUS)
    login, where = logins.log_in(ctx, door)
    wanted = sys.stdin.isatty() and sys.stdout.isatty()
    terminal = logins.has_terminal(login, command, wanted=wanted)
    if gpus:
        door, _ = _begin(ctx, out, door, "shell", gpus)
        login, where = logins.log_in(ctx, door)
        where = os.path.join(where, "code", str(door.run))
    argv = logins.shell_argv(login, where, command, terminal=terminal)
    out.report.done()
    try:
        # in our place, so that whoever ends us ends it
        os.execvp(argv[0], argv)
    except OSError as error:
        if gpus:
            doors.stop(ctx, door, None)
        raise SpecError(f"ssh cannot be started: {error.strerror}") from error


@click.command()
@click.argument("words", metavar="host=H [gpus=N] [image=I] [port=P]", nargs=-1)
@_stop_option
@output_options
def lab(words: Sequence[str], stop: bool, as_json: bool, colour: str) -> None:
    """Open Jupyter Lab of a host's worker on a port of this machine, and print its URL.

    It shows the workspace. Ctrl-C ends the forwarding, not the Lab: kernels go on, the same
    command is back with them, and --stop ends it. It sees no GPU; with gpus=N it is a run that
    leases them, with a Lab of its own that ends with Ctrl-C.

    \b
    Examples:
      runner lab host=gpu1
      runner lab host=gpu1 gpus=1 port=8888
    """
    keys = read_keys(words, "host", "gpus", "image", "port")
    if stop:
        _stop(keys, "lab", "jupyter", as_json, colour)
    else:
        _forward(keys, "lab", "jupyter", as_json, colour)


@click.command()
@click.argument("words", metavar="[host=H] [image=I] [port=P]", nargs=-1)
@_stop_option
@output_options
def tensorboard(words: Sequence[str], stop: bool, as_json: bool, colour: str) -> None:
    """Open TensorBoard of a host's worker on a port of this machine, and print its URL.

    It shows the logs of all runs there, and what scripts wrote to runs/ in their working folder;
    without host= those of local. Ctrl-C ends the forwarding. Other users of this machine are not
    let in.

    \b
    Examples:
      runner tensorboard
      runner tensorboard host=gpu1 port=6006
    """
    keys = read_keys(words, "host", "image", "port")
    keys.setdefault("host", "local")
    if stop:
        _stop(keys, "tensorboard", "tensorboard", as_json, colour)
    else:
        _forward(keys, "tensorboard", "tensorboard", as_json, colour)


@click.command("ssh-config")
@click.argument("words", metavar="host=H [image=I]", nargs=-1)
@output_options
def ssh_config(words: Sequence[str], as_json: bool, colour: str) -> None:
    """Print a Host block for ~/.ssh/config: ssh, scp, rsync and IDEs get into a host's worker.

    The name is runner-H. A key of this project's own is made and may log in to the workers of
    your account there; your own keys and files are not touched, and no agent is forwarded.

    \b
    Examples:
      runner ssh-config host=gpu1 >> ~/.ssh/config
      ssh runner-gpu1
      rsync -a data/ runner-gpu1:/workspace/data/
    """
    keys = read_keys(words, "host", "image")
    door, ctx, out = _open(keys, "ssh-config", as_json, colour)
    from runner.app import logins
    from runner.carriers import worker_login

    login, _ = logins.log_in(ctx, door)
    facts = dict(worker_login.options(login))
    out.made(worker_login.config_block(login), host=login.host, alias=login.alias, options=facts)


@click.command("ssh-stream", hidden=True)
@click.argument("words", metavar="host=H", nargs=-1)
@click.option("--project", required=True, help="The project's folder.")
def ssh_stream(words: Sequence[str], project: str) -> None:
    """Carry ssh's bytes to a worker: the ProxyCommand of ssh-config."""
    keys = read_keys(words, "host", "image", "run")
    from runner.app import logins
    from runner.app.context import open_context

    out = open_output(False, "never")
    ctx = open_context(out.report, Path(project))
    logins.stream(
        ctx, logins.Door(ctx.host(_host(keys, "ssh-stream")), keys.get("image"), keys.get("run"))
    )


def _stop(keys: dict[str, str], command: str, name: str, as_json: bool, colour: str) -> None:
    """End the worker's own service."""
    if "gpus" in keys or "port" in keys:
        raise SpecError("--stop ends what the host's worker runs; it takes host= and image= alone")
    door, ctx, out = _open(keys, command, as_json, colour)
    with ctx.connect(door.host, image=door.image) as worker:
        worker.call("service", name=name, stop=True)
    out.report.done()
    out.made([], host=door.host.name, service=name, stopped=True)


def _forward(keys: dict[str, str], command: str, to: str, as_json: bool, colour: str) -> None:
    door, ctx, out = _open(keys, command, as_json, colour)
    from runner.app import doors, forwarding

    gpus = _number(keys, "gpus", _MOST_GPUS)
    listener = forwarding.Listener(_number(keys, "port", 65535) or None)
    container: str | None = None

    def on_ready(token: str) -> None:
        url = f"http://127.0.0.1:{listener.port}/"
        url += f"lab?token={token}" if token else ""
        out.made([url], host=door.host.name, service=to, url=url, port=listener.port, run=door.run)
        end = f"the forwarding and {door.run}" if door.run else "the forwarding"
        out.report.note(f"Ctrl-C ends {end}")
        if not token and not forwarding.can_tell_users():
            out.warn(f"{command}: other users of this machine can open that port, too")

    try:
        if gpus:
            door, container = _begin(ctx, out, door, command, gpus)
        forwarder = forwarding.Forwarder(
            ctx,
            door.host,
            forwarding.Target(to, door.run),
            listener,
            image=door.image,
            container=container,
        )
        forwarder.run(on_ready)
    except KeyboardInterrupt:
        if door.run is not None:
            out.report.step(f"{door.run}  ending")
            doors.stop(ctx, door, container)
        raise
    finally:
        listener.close()
        out.report.done()
    out.warn(f"{door.run} has ended")


def _begin(ctx: Context, out: Output, door: Door, kind: str, gpus: int) -> tuple[Door, str | None]:
    """The door of a new run with GPUs, open by now, and its container where it is another one."""
    from runner.app import doors, logins

    run = doors.begin(ctx, door.host, kind, gpus, door.image)
    out.report.note(
        f"{run} on {door.host.name}; it ends with the {'session' if kind == 'shell' else 'Lab'}"
    )
    opened = logins.Door(door.host, door.image, run)
    try:
        return opened, doors.wait_open(ctx, opened)
    except (KeyboardInterrupt, RunnerError) as error:
        out.report.done()
        if isinstance(error, KeyboardInterrupt):
            _give_up(ctx, out, run, door.host.name)
        raise


def _give_up(ctx: Context, out: Output, run: str, host: str) -> None:
    """Nobody waits for it any more."""
    from runner.app import cancel
    from runner.app.runs import RunRef

    out.report.step(f"{run}  cancelling")
    cancel.cancel(ctx, [RunRef(run, host)], cancel.Order(now=True))
    out.warn(f"{run} is cancelled")


def _open(
    keys: dict[str, str], command: str, as_json: bool, colour: str
) -> tuple[Door, Context, Output]:
    name = _host(keys, command)
    from runner.app import logins

    out = open_output(as_json, colour)
    ctx = open_project(out)
    return logins.Door(ctx.host(name), keys.get("image")), ctx, out


def _host(keys: dict[str, str], command: str) -> str:
    if "host" not in keys:
        raise SpecError(f"{command} needs host=H", "runner host list")
    return keys["host"]


def _number(keys: dict[str, str], key: str, most: int) -> int:
    """A whole number, 0 where none is given. Raises SpecError."""
    text = keys.get(key, "0")
    if not (text.isascii() and text.isdigit()) or int(text) > most:
        from runner.fields import said

        raise SpecError(f"{key} is {said(text)}; it is a whole number from 0 to {most}")
    return int(text)

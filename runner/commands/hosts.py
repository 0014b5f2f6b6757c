"""Projects, hosts and their workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner import __version__
from runner.commands.invocation import asker, open_output, open_project, read_keys
from runner.errors import HostError, ProvisionError, SpecError
from runner.usage import Commands, output_options

if TYPE_CHECKING:
    from runner.app.reports import WorkerVersion


@click.command()
@click.argument("folder", metavar="[DIR]", default=".")
@output_options
def init(folder: str, as_json: bool, colour: str) -> None:
    """Write a project: runner.toml, hosts/, agents/.

    Nothing that is there already is changed; repeating it is safe.

    \b
    Examples:
      runner init
      runner init ~/cartpole
    """
    from runner.app.init import init as write_project

    out = open_output(as_json, colour)
    report = write_project(Path(folder))
    out.made(report.made, folder=str(report.folder), made=report.made, left=report.left)
    for name in report.left:
        out.report.note(f"{name}: there already, left as it is")


@click.group(cls=Commands)
def host() -> None:
    """Add, list, rekey and remove hosts."""


@host.command("add")
@click.argument("name")
@click.argument("target")
@click.option("--jump", metavar="J", help="Reach it through this machine.")
@click.option(
    "fingerprints",
    "--fingerprint",
    metavar="F",
    multiple=True,
    help="SHA256:… its key must have, or, once more, a jump's; nothing is asked then.",
)
@output_options
def host_add(
    name: str,
    target: str,
    jump: str | None,
    fingerprints: Sequence[str],
    as_json: bool,
    colour: str,
) -> None:
    """Add a host: shows its key, asks, writes hosts/NAME.toml.

    TARGET is whatever ssh takes: an alias, user@name, ssh://user@name:port. Your known_hosts is
    read and never written. Whoever may use Docker on a host is root there.

    \b
    Examples:
      runner host add gpu1 drl@10.20.0.7 --jump login.lab
      runner host add gpu1 gpu1 --fingerprint SHA256:6Zb9Qm2V0eJk1hTnq5o0c3mWZr7yXgkq0hI2f0f9kPs
    """
    from runner.app import hosts

    out = open_output(as_json, colour)
    path = hosts.add(open_project(out), name, target, jump, fingerprints, asker())
    out.made([], host=name, file=str(path))


@host.command("rekey")
@click.argument("name")
@click.option(
    "--fingerprint", metavar="F", help="SHA256:… the new key must have; nothing is asked then."
)
@output_options
def host_rekey(name: str, fingerprint: str | None, as_json: bool, colour: str) -> None:
    """Accept the new key of a host that was installed anew.

    Goes the way to the host, shows which key changed, from what to what, and asks. Only the pinned
    key's line of hosts/NAME.toml is written; your known_hosts never is.

    \b
    Examples:
      runner host rekey gpu1
      runner host rekey gpu1 --fingerprint SHA256:6Zb9Qm2V0eJk1hTnq5o0c3mWZr7yXgkq0hI2f0f9kPs
    """
    from runner.app import rekey

    out = open_output(as_json, colour)
    ctx = open_project(out)
    made = rekey.rekey(ctx, name, fingerprint, asker())
    out.made([], host=name, keys=[{"name": k.name, "old": k.old, "new": k.new} for k in made])
    if not made:
        out.report.note(f"hosts/{name}.toml is as it was")


@host.command("list")
@output_options
def host_list(as_json: bool, colour: str) -> None:
    """List the hosts of this project."""
    out = open_output(as_json, colour)
    ctx = open_project(out)
    out.hosts(list(ctx.hosts.values()))
    for error in ctx.broken.values():
        out.error(error)


@host.command("remove")
@click.argument("name")
@output_options
def host_remove(name: str, as_json: bool, colour: str) -> None:
    """Remove a host from this project; the host itself is left as it is."""
    from runner.app import hosts

    out = open_output(as_json, colour)
    hosts.remove(open_project(out), name)
    out.made([], host=name)


@click.command()
@click.argument("words", metavar="host=H [image=I]", nargs=-1)
@click.option("--rebuild", is_flag=True, help="Build the image anew, from its base.")
@click.option(
    "--at-boot/--no-at-boot",
    default=None,
    help="Of a venv: have cron or systemd start the worker at boot, or no more.",
)
@output_options
def provision(
    words: Sequence[str], rebuild: bool, at_boot: bool | None, as_json: bool, colour: str
) -> None:
    """Make the worker on a host: image, container, workspace.

    It says what it will make, makes it and tries it. Repeating it is safe. Runs that live there go
    on in the container they are in; what is submitted from then on goes to the new one.

    \b
    Examples:
      runner provision host=gpu1
      runner provision host=gpu1 image=torch-2.4
    """
    keys = read_keys(words, "host", "image")
    if "host" not in keys:
        raise SpecError("provision needs host=H", "runner host list")
    from runner.app.provision import provision as make_worker

    out = open_output(as_json, colour)
    ctx = open_project(out)
    out.provisioned(make_worker(ctx, keys["host"], keys.get("image"), rebuild, at_boot))


@click.command()
@click.argument("words", metavar="host=H", nargs=-1)
@output_options
def drain(words: Sequence[str], as_json: bool, colour: str) -> None:
    """Let a host start nothing new; what runs there goes on.

    What is submitted waits until the host is undrained. It outlives restarts of the worker.

    \b
    Example:
      runner drain host=gpu1
    """
    _drain("drain", words, as_json, colour)


@click.command()
@click.argument("words", metavar="host=H", nargs=-1)
@output_options
def undrain(words: Sequence[str], as_json: bool, colour: str) -> None:
    """Let a drained host take runs up again."""
    _drain("undrain", words, as_json, colour)


def _drain(command: str, words: Sequence[str], as_json: bool, colour: str) -> None:
    keys = read_keys(words, "host")
    if "host" not in keys:
        raise SpecError(f"{command} needs host=H", "runner host list")
    from runner.app import drain as use
    from runner.show import tables

    out = open_output(as_json, colour)
    found = use.drain(open_project(out), keys["host"], command == "drain")
    if as_json:
        out.document(tables.drained_document(found))
    else:
        out.lines([tables.drained_line(found)])


@click.command()
@click.argument("words", metavar="host=H [image=I]", nargs=-1)
@click.option("--purge", is_flag=True, help="Also workspace, runs, images: all that was made.")
@click.option("--yes", is_flag=True, help="Ask nobody before runs and images go.")
@output_options
def down(words: Sequence[str], purge: bool, yes: bool, as_json: bool, colour: str) -> None:
    """Take the workers of a host away, or the one of an image.

    Runs, checkpoints and images stay for the next provision; with --purge the host is as it was
    before. While runs live there it refuses.

    \b
    Examples:
      runner down host=gpu1
      runner down host=gpu1 --purge
    """
    keys = read_keys(words, "host", "image")
    if "host" not in keys:
        raise SpecError("down needs host=H", "runner host list")
    from runner.app.down import down as take_down

    out = open_output(as_json, colour)
    ask = None if as_json else asker()
    ctx = open_project(out)
    out.taken_down(take_down(ctx, keys["host"], keys.get("image"), purge=purge, yes=yes, ask=ask))


@click.command()
@click.argument("words", metavar="[host=H]", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="Every host of this project.")
@output_options
def version(words: Sequence[str], everyone: bool, as_json: bool, colour: str) -> int:
    """Show versions: here, and on a host its worker and image.

    With --all those of every host, asked at the same time; who does not answer is named.
    """
    import platform

    keys = read_keys(words, "host")
    if everyone and keys:
        raise SpecError("version takes host=H or --all, not both", "runner version --help")
    out = open_output(as_json, colour)
    client: Mapping[str, object] = {"runner": __version__, "python": platform.python_version()}
    workers: list[WorkerVersion] = []
    if keys or everyone:
        from runner.app.version import version as ask_version

        here, *workers = ask_version(open_project(out), keys.get("host"), everyone)
        client = here.facts
    out.versions(client, workers)
    states = {worker.contact.state for worker in workers}
    if "unreachable" in states:
        return HostError.status
    return ProvisionError.status if "no-worker" in states else 0

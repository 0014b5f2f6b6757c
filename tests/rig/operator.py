"""The operator's side of a test: a home of its own, and ssh that looks only there.

OpenSSH takes `~` from the account, not from HOME, so a private HOME alone would still
read and write `/root/.ssh`. The `ssh` that comes first on this PATH runs the real one
with `-F HOME/.ssh/config`, and that file names every other file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rig.hosts import RigHost

if TYPE_CHECKING:
    from tests.rig.rig import Rig

REPOSITORY = Path(__file__).resolve().parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Operator:
    """A person at a machine: `home`, `project` (the current folder) and `env`."""

    def __init__(self, rig: Rig | None, home: Path) -> None:
        self.rig = rig
        self.home = home
        self.ssh_folder = home / ".ssh"
        self.ssh_config = self.ssh_folder / "config"
        self.known_hosts = self.ssh_folder / "known_hosts"
        self.bin = home / "bin"
        self.project = home / "project"
        self.runtime = home / "xdg"
        for folder in (home, self.ssh_folder, self.bin, self.project, self.runtime):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        self.env = {
            "HOME": str(home),
            "USER": "root",
            "LOGNAME": "root",
            "LANG": "C.UTF-8",
            "PATH": f"{self.bin}:{Path(sys.executable).parent}:{SYSTEM_PATH}",
            "XDG_RUNTIME_DIR": str(self.runtime),
        }
        if not _is_runner_installed():
            self.env["PYTHONPATH"] = str(REPOSITORY)
        self._lay_ssh(rig)

    def _lay_ssh(self, rig: Rig | None) -> None:
        if rig is not None:
            self.use_key("id_ed25519")
        self.ssh_config.write_text(self._config(rig))
        self.ssh_config.chmod(0o600)
        self.trust(*(rig.hosts if rig is not None else ()))
        # /usr/bin/ssh by its full name: it starts itself again by that name for a jump
        front = f'#!/bin/sh\nexec /usr/bin/ssh -F "{self.ssh_config}" "$@"\n'
        (self.bin / "ssh").write_text(front)
        (self.bin / "ssh").chmod(0o755)

    def _config(self, rig: Rig | None) -> str:
        blocks = []
        for host in rig.hosts if rig is not None else ():
            block = [f"Host {host.alias}", f"HostName {host.spec.address}", f"User {host.user}"]
            if host.spec.port != 22:
                block.append(f"Port {host.spec.port}")
            if host.spec.jump:
                block.append(f"ProxyJump rig-{host.spec.jump}")
            blocks.append("\n    ".join(block))
        if rig is not None:
            for way in rig.ways:
                place = f"HostName {way.address(rig.paths.instance)}"
                blocks.append("\n    ".join([f"Host {way.alias}", place, f"User {rig.gpu.user}"]))
        everywhere = [
            "Host *",
            f"IdentityFile {self.ssh_folder}/id_ed25519",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile none",
        ]
        return "\n\n".join([*blocks, "\n    ".join(everywhere)]) + "\n"

    def use_key(self, name: str) -> None:
        """Hold the key that opens the hosts (`id_ed25519`), or one that opens none."""
        assert self.rig is not None
        for suffix in ("", ".pub"):
            target = self.ssh_folder / f"id_ed25519{suffix}"
            shutil.copyfile(self.rig.paths.keys / f"{name}{suffix}", target)
            target.chmod(0o600)

    def trust(self, *hosts: RigHost) -> None:
        """Make known_hosts hold exactly these hosts' keys."""
        lines = [host.known_hosts_line for host in hosts]
        if self.rig is not None and self.rig.gpu in hosts:
            places = [way.address(self.rig.paths.instance) for way in self.rig.ways]
            lines += [f"{place} {self.rig.gpu.host_key}\n" for place in places]
        self.known_hosts.write_text("".join(lines))
        self.known_hosts.chmod(0o600)

    def trust_wrongly(self, host: RigHost) -> None:
        """Make known_hosts hold another key for `host` than it has."""
        assert self.rig is not None
        others = [other for other in self.rig.hosts if other is not host]
        lines = [other.known_hosts_line for other in others]
        lines.append(f"{host.known_hosts_name} {others[0].host_key}\n")
        self.known_hosts.write_text("".join(lines))

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        stdin: str | bytes | None = None,
        limit_s: float = 60.0,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as the operator in the project folder; output as bytes."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        return subprocess.run(
            [os.fspath(word) for word in argv],
            input=data if data is not None else b"",
            capture_output=True,
            timeout=limit_s,
            check=False,
            cwd=cwd or self.project,
            env={**self.env, **(env or {})},
        )

    def popen(self, argv: Sequence[str | Path], **options: object) -> subprocess.Popen[bytes]:
        """Start a command as the operator; the caller ends it."""
        given = {"cwd": self.project, "env": self.env, "stdin": subprocess.DEVNULL, **options}
        return subprocess.Popen([os.fspath(word) for word in argv], **given)  # type: ignore[call-overload, no-any-return]

    def runner(self, *words: str | Path, **options: object) -> subprocess.CompletedProcess[bytes]:
        """Run `runner WORDS…`."""
        return self.run([sys.executable, "-m", "runner", *words], **options)  # type: ignore[arg-type]

    def ssh(self, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
        """Run `ssh -o BatchMode=yes WORDS…`."""
        return self.run([self.bin / "ssh", "-o", "BatchMode=yes", *words], **options)  # type: ignore[arg-type]

    def without_ssh(self) -> dict[str, str]:
        """An environment whose PATH has no `ssh`, all else as before."""
        mirror = self.home / "bin-without-ssh"
        mirror.mkdir(exist_ok=True)
        for place in self.env["PATH"].split(":"):
            for tool in Path(place).glob("*") if place != str(self.bin) else ():
                link = mirror / tool.name
                if tool.name != "ssh" and not link.is_symlink():
                    link.symlink_to(tool)
        return {**self.env, "PATH": str(mirror)}


_installed: list[bool] = []


def _is_runner_installed() -> bool:
    """Whether `runner` can be imported from any folder, as after `pip install`."""
    if not _installed:
        argv = [sys.executable, "-I", "-c", "import runner.cli"]
        done = subprocess.run(argv, capture_output=True, cwd="/", check=False)
        _installed.append(done.returncode == 0)
    return _installed[0]

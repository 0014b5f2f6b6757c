"""Another sshd on a rig host, with a configuration of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.wait import wait_for
from tests.rig.hosts import RigHost


@dataclass(frozen=True)
class ExtraSshd:
    """One that runs."""

    host: RigHost
    port: int
    log: Path

    @property
    def target(self) -> str:
        """A destination with all that is needed to get there."""
        return f"ssh://{self.host.user}@127.0.0.1:{self.port}"

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def logins(self) -> int:
        """How many were let in."""
        return self.said().count("Accepted ")


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def extra_sshd(
    host: RigHost, name: str, port: int | None = None, **options: str
) -> Iterator[ExtraSshd]:
    """The rig host's sshd at another port with some options replaced or (`""`) left out.

    An option may be several lines: its value holds them all, the name for each but the first.
    """
    port = port or free_port()
    wanted = {"Port": str(port), "PidFile": "none", **options}
    lines = [f"{key} {value}" for key, value in wanted.items() if value]
    lower = {key.lower() for key in wanted}
    for line in (host.folder / "sshd_config").read_text().splitlines():
        if line.split(" ")[0].lower() not in lower:
            lines.append(line)
    config = host.folder / f"{name}.config"
    config.write_text("\n".join(lines) + "\n")
    log = host.folder / f"{name}.log"
    log.unlink(missing_ok=True)
    argv = host.inside(["/usr/sbin/sshd", "-D", "-f", config, "-E", log])
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    def listens() -> bool:
        assert process.poll() is None, log.read_text() if log.exists() else "sshd ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens, 20, f"sshd {name}")
        yield ExtraSshd(host, port, log)
    finally:
        process.kill()
        process.wait()

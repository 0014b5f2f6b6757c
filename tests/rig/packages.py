"""The Debian packages that the rig's parts come from, by the command each is looked up by."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.rig.processes import run

PACKAGES = {
    "/usr/bin/python3": "python3",
    "/usr/bin/ssh": "openssh-client",
    "/usr/sbin/sshd": "openssh-server",
    "/usr/bin/zsh": "zsh",
    "/usr/bin/fish": "fish",
    "/usr/bin/tcsh": "tcsh",
    "chromium": "chromium",
    "crontab": "cron",
    "debootstrap": "debootstrap",
    "dockerd": "docker.io",
    "gcc": "gcc",
    "git": "git",
    "ip": "iproute2",
    "iptables": "iptables",
    "mpirun": "openmpi-bin",
    "nsenter": "util-linux",
    "ps": "procps",
    "rsync": "rsync",
}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLICY = Path("/usr/sbin/policy-rc.d")


def find_missing() -> list[str]:
    """Packages whose command is not there (dockerd of another package will do)."""
    missing = {
        package
        for tool, package in PACKAGES.items()
        if shutil.which(tool, path=SYSTEM_PATH) is None
    }
    return sorted(missing)


def install_missing(say: Callable[[str], None]) -> None:
    """Install what is missing, starting no service; without the right, name it."""
    missing = find_missing()
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say("left out: tests that need these packages; install them with")
        say(shlex.join(["sudo", "apt-get", "install", "--no-install-recommends", *missing]))
        return
    say(f"installing {' '.join(missing)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    with _no_service_starts():
        run([*apt, "update"], limit_s=600, env=env)
        run([*apt, "install", "--no-install-recommends", *missing], limit_s=1200, env=env)


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian asks policy-rc.d before it starts a new package's service; 101 forbids it."""
    if POLICY.exists():  # the machine has its own word on it
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()

"""Rig hosts: namespaces with an sshd in them, and what tests may do to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.wait import wait_for
from tests.rig import processes
from tests.rig.paths import RigPaths

SSHD = "/usr/sbin/sshd"
DOCKER_GID = 52999
# A start under load takes 2 s; ten times that means that it hangs.
START_LIMIT_S = 20.0


@dataclass(frozen=True)
class HostSpec:
    """What tells one rig host from another."""

    name: str
    user: str
    uid: int
    netns: str | None  # None: the machine's own network, on loopback
    address: str
    port: int
    docker: str  # "allowed", "refused" (a socket its user may not open) or "none"
    jump: str | None = None  # the host that the operator goes through
    forwarding: bool = False


class RigHost:
    """One running (or stopped) host."""

    def __init__(self, spec: HostSpec, paths: RigPaths) -> None:
        self.spec = spec
        self.name = spec.name
        self.user = spec.user
        self.paths = paths
        self.folder = paths.host(spec.name)

    @property
    def alias(self) -> str:
        """The name that the operator's ssh config gives it."""
        return f"rig-{self.name}"

    @property
    def home(self) -> Path:
        """The user's home: the same path here and on the host."""
        return self.folder / "home" / self.user

    @property
    def bin(self) -> Path:
        """First on the PATH of every session there."""
        return self.folder / "bin"

    @property
    def run_folder(self) -> Path:
        """The host's `/run`, seen from here."""
        return self.folder / "run"

    @property
    def tmp(self) -> Path:
        """The host's `/tmp`, seen from here."""
        return self.folder / "tmp"

    @property
    def docker_socket(self) -> Path:
        return self.run_folder / "docker.sock"

    @property
    def sshd_log(self) -> Path:
        return self.folder / "sshd.log"

    @property
    def host_key(self) -> str:
        """Type and key, as in a `.pub` file without the comment."""
        text = (self.folder / "ssh_host_ed25519_key.pub").read_text()
        return " ".join(text.split()[:2])

    @property
    def known_hosts_name(self) -> str:
        port = self.spec.port
        return self.spec.address if port == 22 else f"[{self.spec.address}]:{port}"

    @property
    def known_hosts_line(self) -> str:
        return f"{self.known_hosts_name} {self.host_key}\n"

    @property
    def path(self) -> str:
        """PATH of every session there."""
        return f"{self.bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    # making it

    def lay(self, public_key: str) -> None:
        """Write the host's files: accounts, keys, sshd's configuration, an empty home."""
        for folder in (self.folder, self.bin, self.run_folder, self.run_folder / "sshd"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
        self.tmp.mkdir(exist_ok=True)
        self.tmp.chmod(0o1777)
        self._lay_accounts()
        key = self.folder / "ssh_host_ed25519_key"
        if not key.exists():
            processes.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key])
        (self.folder / "sshd_config").write_text(self._sshd_config())
        self.lay_home(public_key)

    def lay_home(self, public_key: str) -> None:
        """Give the user an empty home that `public_key` opens."""
        shutil.rmtree(self.home, ignore_errors=True)
        ssh = self.home / ".ssh"
        ssh.mkdir(parents=True)
        (ssh / "authorized_keys").write_text(public_key)
        for path, mode in (
            (self.home, 0o755),
            (ssh, 0o700),
            (ssh / "authorized_keys", 0o600),
        ):
            path.chmod(mode)
            os.chown(path, self.spec.uid, self.spec.uid)

    def _lay_accounts(self) -> None:
        """The host's own /etc/passwd, group and shadow: the machine's stay untouched."""
        user, uid = self.spec.user, self.spec.uid
        # the machine's system accounts, since its packages' files belong to them
        system = [line for line in _lines("/etc/passwd") if int(line.split(":")[2]) < 1000]
        if not any(line.startswith("sshd:") for line in system):
            system.append("sshd:x:199:65534::/run/sshd:/usr/sbin/nologin")
        system.append("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin")
        person = f"{user}:x:{uid}:{uid}:rig:{self.home}:/bin/bash"
        members = user if self.spec.docker == "allowed" else ""
        groups = [
            line
            for line in _lines("/etc/group")
            if int(line.split(":")[2]) < 1000 and not line.startswith("docker:")
        ]
        groups += ["nogroup:x:65534:", f"docker:x:{DOCKER_GID}:{members}", f"{user}:x:{uid}:"]
        etc = self.folder / "etc"
        etc.mkdir(exist_ok=True)
        (etc / "passwd").write_text("\n".join([*system, person]) + "\n")
        (etc / "group").write_text("\n".join(groups) + "\n")
        # "*" and not "!": sshd refuses a locked account even with the right key
        shadow = [f"{line.split(':')[0]}:*:19000:0:99999:7:::" for line in [*system, person]]
        (etc / "shadow").write_text("\n".join(shadow) + "\n")
        (etc / "shadow").chmod(0o640)
        # its own name resolves, without asking a name server
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.alias}\n")

    def _sshd_config(self) -> str:
        spec = self.spec
        forwarding = "yes" if spec.forwarding else "local"
        return f"""\
Port {spec.port}
ListenAddress {spec.address if spec.netns is None else "0.0.0.0"}
HostKey {self.folder}/ssh_host_ed25519_key
PidFile /run/sshd.pid
AuthorizedKeysFile .ssh/authorized_keys
AllowUsers {spec.user}
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
UsePAM no
StrictModes yes
AllowTcpForwarding {forwarding}
AllowAgentForwarding no
X11Forwarding no
PrintMotd no
PrintLastLog no
UseDNS no
LogLevel VERBOSE
# fifty connections at once are a test, not an attack
MaxStartups 200
AcceptEnv LANG LC_*
SetEnv PATH={self.path}
Subsystem sftp internal-sftp
"""

    def _binds(self) -> list[tuple[str, str]]:
        pairs = [(str(self.folder / "etc" / name), f"/etc/{name}") for name in ETC_FILES]
        pairs += [(str(self.tmp), "/tmp"), (str(self.run_folder), "/run")]
        crontabs = Path("/var/spool/cron/crontabs")
        if crontabs.is_dir():  # cron is installed: the host has crontabs of its own
            own = self.folder / "crontabs"
            own.mkdir(exist_ok=True)
            found = crontabs.stat()
            os.chown(own, found.st_uid, found.st_gid)
            own.chmod(found.st_mode & 0o7777)
            pairs.append((str(own), str(crontabs)))
        return pairs

    # running it

    def boot(self) -> list[dict[str, int]]:
        """Start the host with its sshd; the processes to record (killing them ends all)."""
        pid_file = self.folder / "init.pid"
        pid_file.unlink(missing_ok=True)
        for left in self.run_folder.iterdir():  # a /run is empty after a boot
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        (self.run_folder / "sshd").mkdir()
        if self.spec.docker == "refused":
            # nobody listens: who may not open it is refused before that shows
            with socket.socket(socket.AF_UNIX) as unused:
                unused.bind(str(self.docker_socket))
            self.docker_socket.chmod(0o660)
            os.chown(self.docker_socket, 0, DOCKER_GID)
        config = {"name": self.alias, "binds": self._binds(), "pid_file": str(pid_file)}
        config_file = self.folder / "init.json"
        config_file.write_text(json.dumps(config))
        into = ["nsenter", f"--net=/run/netns/{self.spec.netns}"] if self.spec.netns else []
        script = str(Path(__file__).with_name("host_init.py"))
        unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts"]
        init = [sys.executable, "-I", "-S", script, str(config_file)]
        child = processes.spawn([*into, *unshare, *init], self.folder / "init.log")
        made = [processes.identify(child.pid)]

        def is_ready() -> bool:
            assert child.poll() is None, (self.folder / "init.log").read_text()
            return pid_file.exists()

        wait_for(is_ready, START_LIMIT_S, f"host {self.name} to boot")
        made.append(processes.identify(int(pid_file.read_text())))
        self.start_sshd()
        return made

    @property
    def init_pid(self) -> int:
        return int((self.folder / "init.pid").read_text())

    def is_up(self) -> bool:
        try:
            return processes.read_start(self.init_pid) is not None
        except (FileNotFoundError, ValueError):
            return False

    def inside(self, argv: Sequence[str | Path], *, as_user: bool = False) -> list[str]:
        """The argv, run from here, that runs `argv` on the host (as root, or as its user)."""
        enter = ["nsenter", f"--target={self.init_pid}", "--mount", "--uts", "--pid", "--net"]
        if as_user:
            who = [f"--reuid={self.spec.uid}", f"--regid={self.spec.uid}", "--init-groups"]
            enter += ["--", "setpriv", *who, "env", "-C", str(self.home)]
            enter += [f"HOME={self.home}", f"USER={self.user}", f"LOGNAME={self.user}"]
        else:
            enter += ["--", "env", "HOME=/root"]
        return [*enter, f"PATH={self.path}", *map(str, argv)]

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        as_user: bool = False,
        check: bool = True,
        limit_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, past ssh (to look at it, or to break it)."""
        return processes.run(self.inside(argv, as_user=as_user), check=check, limit_s=limit_s)

    def start_sshd(self) -> None:
        argv = [SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.sshd_log)]
        child = processes.spawn(self.inside(argv), self.folder / "sshd.out")

        def is_listening() -> bool:
            assert child.poll() is None, f"sshd ended: {self.sshd_log.read_text()[-2000:]}"
            return (self.run_folder / "sshd.pid").exists()

        wait_for(is_listening, START_LIMIT_S, f"sshd of {self.name}")

    def is_sshd_up(self) -> bool:
        """Whether new connections are taken."""
        pid_file = self.run_folder / "sshd.pid"
        if not self.is_up() or not pid_file.exists():
            return False
        # asked of the host, since its pids are its own
        return self.run(["kill", "-0", pid_file.read_text().strip()], check=False).returncode == 0

    def stop_sshd(self, *, sessions: bool = True) -> None:
        """No new connection is taken; with `sessions` the open ones break too."""
        pid_file = self.run_folder / "sshd.pid"
        self.signal(int(pid_file.read_text()), signal.SIGKILL)
        pid_file.unlink(missing_ok=True)
        if sessions:
            self.break_sessions()

    def break_sessions(self) -> None:
        """Kill the sshd process of every open session, as when the connection is lost."""
        self.run(["pkill", "-KILL", "-u", self.user, "-x", "sshd"], check=False)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process by its pid on the host."""
        self.run(["kill", f"-{int(number)}", str(pid)])

    def processes(self) -> list[tuple[int, str, str]]:
        """(pid on the host, user, command line) of every process there."""
        shown = self.run(["ps", "-eww", "-o", "pid=,user:32=,args="]).stdout
        rows = [line.split(None, 2) for line in shown.splitlines()]
        return [(int(row[0]), row[1], row[2] if len(row) > 2 else "") for row in rows]


ETC_FILES = ("passwd", "group", "shadow", "hosts")


def _lines(path: str) -> list[str]:
    lines = Path(path).read_text().splitlines()
    return [line for line in lines if line.count(":") >= 3 and not line.startswith("nobody:")]

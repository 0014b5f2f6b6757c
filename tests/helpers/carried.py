"""What goes through a carrier to a rig host, and what is seen of it there."""

from __future__ import annotations

import subprocess

from runner.carriers import Carrier, open_carrier
from runner.model import Host
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator

PROXY = """
import os, socket, sys, threading
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        sock.sendall(data)
    os._exit(0)
threading.Thread(target=up, daemon=True).start()
while data := sock.recv(65536):
    os.write(1, data)
"""
"""A program for ProxyCommand: `python3 FILE %h %p`."""


def said_by(carrier: Carrier) -> bytes:
    """All that comes; its failure, raised. The carrier is closed."""
    try:
        data = b""
        while piece := carrier.read(1 << 16):
            data += piece
        failure = carrier.failure()
        if failure is not None:
            raise failure
        return data
    finally:
        carrier.close()


def read_all(host: Host, argv: list[str]) -> bytes:
    """All that a program without input says; its failure, raised."""
    carrier = open_carrier(host, argv)
    try:
        carrier.close_write()
    except BaseException:
        carrier.close()
        raise
    return said_by(carrier)


def say(host: Host, lane: int = 0) -> bytes:
    """What `echo in` says first: b"in\\n"; where it says nothing, the failure is raised."""
    carrier = open_carrier(host, ["echo", "in"], lane=lane)
    try:
        data = carrier.read(100)
        failure = None if data else carrier.failure()
        if failure is not None:
            raise failure
        return data
    finally:
        carrier.close()


def logins(host: RigHost) -> int:
    """How often a key has opened the host so far."""
    return host.sshd_log.read_text(errors="replace").count("Accepted publickey")


def hang_up(me: Operator) -> None:
    """End the shared connections that are kept warm."""
    for path in (me.runtime / "runner").glob("c-" + "?" * 16):
        # -F: whatever the test made of the configuration
        end = [str(me.bin / "ssh"), "-F", "none", "-O", "exit", "-S", str(path), "x"]
        subprocess.run(end, check=False, capture_output=True, timeout=10)


def go_through_a_proxy(me: Operator, alias: str, mark: str) -> None:
    """Let the user's configuration have a ProxyCommand, whose words end with `mark`."""
    script = me.home / "proxy.py"
    script.write_text(PROXY)
    command = f'sh -c "exec python3 {script} %h %p {mark} 2>/dev/null"'
    lines = f"Host {alias}\n ProxyCommand {command}\n"
    me.ssh_config.write_text(lines + me.ssh_config.read_text())


def running(mark: str) -> int:
    """How many processes of this machine have words that end with `mark`."""
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return len([line for line in shown.stdout.splitlines() if line.endswith(mark)])

"""The first process of a rig host: lays its mounts, then reaps what is orphaned.

Run as `host_init.py CONFIG` in fresh pid, mount and host-name namespaces. CONFIG is JSON:
{"name": …, "binds": [[source, target], …], "pid_file": …}. The pid file appears when the
host is ready and holds the pid as seen from outside. Killing this process ends the host.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys


def main(config_path: str) -> None:
    outer_pid = os.readlink("/proc/self")  # the old /proc still numbers as outside
    with open(config_path) as file:
        config = json.load(file)
    for source, target in config["binds"]:
        subprocess.run(["mount", "--bind", source, target], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    socket.sethostname(config["name"])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    with open(config["pid_file"] + ".new", "w") as file:
        file.write(outer_pid)
    os.rename(config["pid_file"] + ".new", config["pid_file"])
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        # a second's limit: a child may have ended between the look and the wait
        signal.sigtimedwait({signal.SIGCHLD}, 1.0)


if __name__ == "__main__":
    main(sys.argv[1])

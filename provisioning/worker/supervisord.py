"""supervisord, its programs able to hear TERM from their first instant. Run by the job's Python.

    python -I -B supervisord.py -n -c supervisord.conf

supervisord sends TERM once and then waits for as long as a run may take to stop. A program that
it has only just forked still has supervisord's own handlers, and such a TERM would be swallowed.
So the signal is held back over each fork, and ends the child where it has its default meaning.

Its own log is for people; a disk that has no room for it must not end what restarts the dispatcher.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import signal
import socket
import sys
from typing import Any

_HELD = {signal.SIGTERM}


def hold_over_forks() -> None:
    """From here on a TERM to a forked child is never lost: it waits until the default is set."""
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go_in_child)


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def _let_go_in_child() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_go()


def survive_a_full_disk() -> None:
    """Have supervisord's log lose words instead of raising.

    Its handlers tell of a failed write on stderr, which for `local` is a file on the same disk:
    that raises, too, and ends supervisord. A log that is turned over may be without room half way.
    """
    import supervisor.loggers

    loggers: Any = supervisor.loggers
    opened, rolled = loggers.FileHandler.__init__, loggers.RotatingFileHandler.doRollover

    def open_or_swallow(self: Any, filename: str, mode: str = "ab") -> None:
        try:
            opened(self, filename, mode)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            opened(self, os.devnull, mode)

    def roll_or_go_on(self: Any) -> None:
        try:
            rolled(self)
        except (OSError, ValueError):
            pass  # ValueError: closed by a turning over that failed

    loggers.Handler.handleError = lambda self: None
    loggers.FileHandler.__init__ = open_or_swallow
    loggers.RotatingFileHandler.doRollover = roll_or_go_on


def unlink_stale_socket() -> None:
    """What a killed one left: supervisord itself says so first, which a full disk forbids."""
    path = os.environ.get("RUNNER_SUPERVISOR_SOCKET", "")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        try:
            asked.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except OSError:
            pass


def remove_folder() -> None:
    """At the end, the folder of its socket; not one of a container's, which goes with that."""
    folder = os.path.dirname(os.environ.get("RUNNER_SUPERVISOR_SOCKET", ""))
    if os.path.basename(folder).startswith("runner-"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    unlink_stale_socket()
    atexit.register(remove_folder)
    hold_over_forks()
    survive_a_full_disk()
    from supervisor.supervisord import main

    sys.exit(main())

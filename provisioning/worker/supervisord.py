"""supervisord, its programs able to hear TERM from their first instant. Run by the job's Python.

    python -I supervisord.py -n -c supervisord.conf

supervisord sends TERM once and then waits for as long as a run may take to stop. A program that
it has only just forked still has supervisord's own handlers, and such a TERM would be swallowed.
So the signal is held back over each fork, and ends the child where it has its default meaning.
"""

from __future__ import annotations

import os
import signal
import sys

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


if __name__ == "__main__":
    hold_over_forks()
    from supervisor.supervisord import main

    sys.exit(main())

"""The worker program, `python3 -I -S -B FOLDER COMMAND`: serve, supervise, dispatcher, rank ARGV…,
service NAME, session ARGV…, door KIND, by-hand.

-B: a .pyc that a nearly full disk cut short would break every later start.
"""

from __future__ import annotations

import os
import sys
from typing import List


def main(argv: List[str]) -> int:
    """Do what the first word says; imports are late, since every rank passes through here."""
    command = argv[0] if argv else "serve"
    if command == "rank":
        import rank

        rank.main(argv[1:])
    if command == "by-hand":
        import byhand_check

        return byhand_check.main(dict(os.environ))
    if command == "session":
        import sessions

        return sessions.main(argv[1:])
    import paths

    environ = dict(os.environ)
    workspace = paths.Workspace(paths.find_workspace(environ), paths.find_place(environ))
    if command == "serve":
        import serve

        return serve.main(workspace)
    if command == "boot":
        import venvs

        return venvs.boot(workspace)
    if command == "dispatcher":
        import dispatcher

        return dispatcher.main(workspace, paths.find_leases(dict(os.environ)))
    if command == "supervise":
        import shutil

        import supervisor

        workspace.make()
        return supervisor.keep(workspace, shutil.which("python3") or sys.executable)
    if command == "service":
        import services

        return services.main(workspace, *argv[1:2])
    if command == "door":
        import door

        return door.main(workspace, argv[1:])
    print("no such command: %s" % command, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

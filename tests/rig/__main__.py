"""`python -m tests.rig COMMAND`: the rig by hand.

up        start it, and leave it for test sessions (one at a time) and for ssh
status    what runs, and how to reach it
down      end it without a trace but for the caches
clean     end it and remove the caches, too
prepare   make what is slow to make: the base image, a Python 3.9
packages  install the Debian packages it needs (as root; else name them)
"""

from __future__ import annotations

import signal
import sys

from tests.rig import packages
from tests.rig.operator import Operator
from tests.rig.paths import RigError
from tests.rig.rig import Rig, say

COMMANDS = ("up", "status", "down", "clean", "prepare", "packages")


def show(rig: Rig) -> None:
    """What runs, and the words to use it by hand."""
    print(f"rig {rig.paths.instance}: {'up' if rig.is_up() else 'down'}  {rig.paths.live}")
    if not rig.is_up():
        return
    for host in rig.hosts:
        place = f"{host.spec.address}:{host.spec.port}"
        print(f"{host.alias:10} {'up' if host.is_up() else 'down':5} {host.user:10} {place}")
    print(f"docker     {'up' if rig.engine.is_up() else 'down':5} {rig.engine.url}")
    print(f"cache      {rig.paths.cache}")
    hand = Operator(rig, rig.paths.live / "operator")
    print(f"ssh        {hand.bin}/ssh rig-gpu docker version")


def main(words: list[str]) -> int:
    if len(words) != 1 or words[0] not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 2
    if words == ["packages"]:
        packages.install_missing(say)
        return 0
    rig = Rig()
    if words == ["prepare"]:
        # ended by `make` when the tests end first: as an exception, so that children end too
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        rig.prepare()
    elif words == ["status"]:
        show(rig)
    else:
        with rig.used_alone():
            if words == ["up"]:
                rig.bring_up_docker()
                show(rig)
            elif words == ["down"]:
                rig.take_down()
            else:
                rig.clean()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RigError as error:
        sys.exit(f"rig: {error}")

"""`python -m runner` is `runner`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """The exit status of one call; a Ctrl-C before it begins ends it without a word too."""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)
        if sys.argv[1:2] == ["__complete"]:
            from runner.completing import answer

            return answer.main(sys.argv[2:])
        from runner import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


def _end(number: int, frame: object) -> None:
    """As without a handler, at once and whatever is under way, but no ssh of ours is left."""
    from runner.children import end_children

    end_children()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main())

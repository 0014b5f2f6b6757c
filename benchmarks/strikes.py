"""One training that kills itself at a chosen moment of its shared modules, or counts the moments.

Told by the environment: MOMENT, the kind; AT, the how many-th of that kind, from 1; TALLY, a file
for the counts of all kinds. Of two ranks it is the second that counts and dies. The agents are as
they are: what is hooked are functions of the modules they share.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

AGENTS = Path(__file__).resolve().parents[1] / "agents"


def striking(moment: str, at: int, seen: dict[str, int]) -> Callable[[str], None]:
    """What is called at every moment: it counts them all, and kills at the `at`-th of one kind."""

    def meet(kind: str) -> None:
        seen[kind] = seen.get(kind, 0) + 1
        if kind == moment and seen[kind] == at:
            os.kill(os.getpid(), signal.SIGTERM if kind == "term" else signal.SIGKILL)

    return meet


def hook(meet: Callable[[str], None]) -> None:
    """Have the shared modules tell of the moments."""
    import checkpoint
    import episodes
    import evaluation
    import parameters
    import teams

    def before(owner: Any, name: str, *kinds: str) -> None:
        plain = getattr(owner, name)

        def told(*args: Any, **kwargs: Any) -> Any:
            for kind in kinds:
                meet(kind)
            return plain(*args, **kwargs)

        setattr(owner, name, told)

    before(episodes.Episodes, "step", "collect", "term")
    before(teams.Teams, "step", "collect", "term")
    before(parameters.Adam, "step", "update")
    before(evaluation, "evaluate", "evaluate")
    write_file, rename = checkpoint.write_file, Path.rename

    def writing(path: Path, data: Any) -> Any:
        if path.name == "model.pt":
            path.write_bytes(bytes(data)[: len(data) // 2])
            meet("half")
            path.unlink()
        if path.name == "manifest.json":
            meet("manifest")
        return write_file(path, data)

    def renaming(path: Path, to: Any) -> Any:
        meet("rename")
        done = rename(path, to)
        meet("renamed")
        return done

    checkpoint.write_file = writing  # type: ignore[assignment]
    Path.rename = renaming  # type: ignore[method-assign, assignment]


def attempt(agent: str, words: Sequence[str], told: dict[str, str]) -> None:
    """One attempt; ends the process."""
    os.environ.update(told)
    status, seen = 70, {}
    is_victim = os.environ.get("RANK", "1") == "1"  # of two ranks the second
    try:
        moment = os.environ.get("MOMENT", "") if is_victim else ""
        hook(striking(moment, int(os.environ.get("AT", "0")), seen))
        sys.argv = [str(AGENTS / f"{agent}.py"), *words]
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
        if not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush(), sys.stderr.flush()
    if is_victim and os.environ.get("TALLY"):
        Path(os.environ["TALLY"]).write_text(json.dumps(seen))
    os._exit(status)


if __name__ == "__main__":
    sys.path.insert(0, str(AGENTS))
    attempt(sys.argv[1], sys.argv[2:], {})

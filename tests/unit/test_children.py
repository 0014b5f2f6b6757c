"""What this process started is ended with what that started, however deaf it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import runner

ROOT = Path(runner.__file__).parents[1]
CODE = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from runner.children import children, end_children
spared = subprocess.Popen(["sleep", "60"], start_new_session=True)
before = children()
deaf = "trap '' TERM; sleep 61 & echo on; wait; sleep 62"
tree = subprocess.Popen(["sh", "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
plain = subprocess.Popen(["sleep", "63"])
ended = subprocess.Popen(["true"])
tree.stdout.readline()
while len(children()) > 3: time.sleep(0.01)
assert children() == {spared.pid, tree.pid, plain.pid}, children()
end_children(before)
assert children() == {spared.pid}, children()
assert (tree.wait(), plain.wait()) == (-9, -15)
print(spared.pid, tree.pid)
spared.kill()
"""


def test_all_but_the_spared_are_ended_with_their_own() -> None:
    argv = [sys.executable, "-c", CODE, str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    group = done.stdout.split()[1]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        assert fields[2] != group or fields[0] == "Z", f"{path} is left of the deaf one"

"""Odd bytes where people and jobs may put any: words, names and contents of files."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any

TOLD_NAMES = (
    "%h:%p",
    "100%",
    "#x",
    ";y",
    ":",
    "%(ENV_HOME)s",
    "$HOME",
    "`id`",
    "a\nb",
    "\\",
    "'",
    '"',
)
"""What supervisors, shells and templates would take for their own."""
SAYS_WORDS = "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
SAYS_PARAMS = 'import os, sys; sys.stdout.write(open(os.environ["RUNNER_PARAMS"]).read())'
SAYS_ENV = """
import os
for name in sorted(name for name in os.environb if name.startswith(b"FUZZ_")):
    os.write(1, name + b"=" + os.environb[name] + b"\\0")
"""
SAYS_TREE = """
import hashlib, json, os, sys
found = {}
for top, folders, files in os.walk(b"."):
    for name in folders + files:
        path = os.path.join(top, name)
        if os.path.islink(path):
            what = "l " + os.readlink(path).hex()
        elif os.path.isfile(path):
            with open(path, "rb") as file:
                what = "f " + hashlib.sha256(file.read()).hexdigest()
            what += " x" if os.access(path, os.X_OK) and os.stat(path).st_mode & 0o100 else ""
        else:
            continue
        found[path[2:].hex()] = what
json.dump(found, sys.stdout)
"""
WRITES = """
import os, random, sys
seed = int(sys.argv[1])
sys.path.insert(0, os.environ["FUZZ_HELP"])
from odd import lay_files
draw = random.Random(seed)
for variable, folder in (("RUNNER_CHECKPOINTS", b"step-1"), ("RUNNER_LOGS", b"more"), ("", b"out")):
    top = os.path.join(os.fsencode(os.environ[variable]) if variable else b".", folder)
    os.makedirs(top)
    lay_files(top, draw)
"""
TALKS = """
import os, random, sys, time
draw = random.Random(int(sys.argv[1]))
for _ in range(60):
    os.write(draw.choice((1, 2)), draw.randbytes(draw.choice((1, 3, 100, 5000, 70000))))
    time.sleep(draw.choice((0, 0, 0.02)))
"""
ODD = '''
import os

def odd_name(draw):
    """A file's name of any bytes but those that none can have."""
    some = bytes(range(1, 256)).replace(b"/", b"")
    kinds = (
        lambda: bytes(draw.choice(some) for _ in range(draw.randrange(1, 40))),
        lambda: draw.choice((b"-rf", b" ", b"a b", b"..x", b"~", b"\\n", b"\\x1b[2J", b"*")),
        lambda: "\\u202e\\u200b\\U0001f600\\u0301".encode() + b"%d" % draw.randrange(99),
        lambda: b"x" * draw.choice((1, 255)),
        lambda: draw.choice((b"%h", b"#", b";", b":", b"$HOME", b"`id`", b"&", b"\\\\", b"CON")),
    )
    while True:
        name = draw.choice(kinds)()
        # what ends so is half written by the rules of checkpoints; the rest are not files' names
        if name not in (b".", b"..") and not name.startswith(b".") and name != b"__pycache__":
            if not name.endswith((b".tmp", b".part", b".pyc")):
                return name


def lay_files(top, draw, count=12):
    """Files with odd names and contents below a folder, some of them deep."""
    for _ in range(count):
        folder = top
        for _ in range(draw.randrange(3)):
            folder = os.path.join(folder, odd_name(draw)[:60])
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, odd_name(draw)), "xb") as file:
                file.write(draw.randbytes(draw.choice((0, 1, 4096, 4097, 300000))))
                if draw.random() < 0.3:
                    os.fchmod(file.fileno(), 0o755)
        except (FileExistsError, NotADirectoryError):
            continue
'''


def odd_word(draw: random.Random) -> bytes:
    """A word of a command: all bytes but NUL."""
    some = bytes(range(1, 256))
    return draw.choice(
        (
            lambda: bytes(draw.choice(some) for _ in range(draw.randrange(60))),
            lambda: draw.choice(TOLD_NAMES).encode(),
            lambda: draw.choice((b"", b"-", b"--", b"-x", b"--help", b"--json", b"-c", b"{lr}")),
            lambda: "\u202e\u2028\U0001f600".encode() * draw.randrange(3),
            lambda: b"x" * draw.randrange(10_000),
        )
    )()


def tree_of(top: Path) -> dict[str, str]:
    """As `SAYS_TREE` tells it."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(top)):
        for name in folders + files:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, os.fsencode(top)).hex()
            if os.path.islink(path):
                found[key] = "l " + os.readlink(path).hex()
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    found[key] = "f " + hashlib.sha256(file.read()).hexdigest()
                found[key] += " x" if os.stat(path).st_mode & 0o100 else ""
    return found


def lay(top: Path, draw: random.Random) -> None:
    """Odd files below a folder, as the jobs lay them."""
    space: dict[str, Any] = {}
    exec(ODD, space)  # one source for both sides
    top.mkdir()
    space["lay_files"](os.fsencode(top), draw)
    names = [name for name in os.listdir(os.fsencode(top)) if name != b"link"]
    for number, name in enumerate(names[:3]):
        os.symlink(name, os.path.join(os.fsencode(top), b"link%d" % number))

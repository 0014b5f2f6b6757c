"""A person at a real interactive shell, who types a line with Tabs and Enter.

`runner` there is the one under test when a shell asks it for completions; called otherwise it
writes its words down, so that what a Tab made of a line is read without reading the screen.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import sys
import termios
from pathlib import Path

from tests.helpers.wait import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
PROMPT = "typed-here>"
STARTS = {
    "bash": ["/bin/bash", "--noprofile", "--rcfile", "{rc}", "-i"],
    "zsh": ["/usr/bin/zsh", "-f", "-i"],
    "fish": ["/usr/bin/fish", "--no-config", "-i"],
}
SETTINGS = {
    "bash": "PS1='{prompt}'; bind 'set bell-style none'; {source}",
    "zsh": "PROMPT='{prompt}'; unsetopt beep promptsp; autoload -U compinit; compinit -D -u;"
    " {source}",
    "fish": "function fish_prompt; echo -n '{prompt}'; end; {source}",
}
_PROGRAM = """#!/bin/sh
if [ "$1" = __complete ]; then
    exec {python} -c 'import sys; from runner.__main__ import main; sys.exit(main())' "$@"
fi
printf '%s\\n' "$@" > {typed}.new
mv {typed}.new {typed}
"""


class Typist:
    """One shell, in a project's folder."""

    def __init__(self, shell: str, home: Path, project: Path, script: str) -> None:
        self.shell = shell
        (home / "bin").mkdir(parents=True)
        self._typed = home / "typed"
        program = home / "bin" / "runner"
        program.write_text(
            _PROGRAM.format(python=shlex.quote(sys.executable), typed=shlex.quote(str(self._typed)))
        )
        program.chmod(0o755)
        (home / "script").write_text(script)
        source = f"source {shlex.quote(str(home / 'script'))}"
        settings = SETTINGS[shell].format(prompt=PROMPT, source=source)
        (home / "rc").write_text(settings + "\n")
        env = {
            "HOME": str(home),
            "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "TERM": "dumb" if shell == "bash" else "xterm",
            "LC_ALL": "C.UTF-8",
            "WANDB_API_KEY": "$(touch pwned)",
        }
        argv = [word.format(rc=home / "rc") for word in STARTS[shell]]
        self.pid, self._fd = pty.fork()
        if self.pid == 0:  # pragma: no cover
            os.chdir(project)
            os.execve(argv[0], argv, env)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.screen = ""
        if shell != "bash":
            self._send(f"source {shlex.quote(str(home / 'rc'))}\r")
        self._await_prompt(0)

    def type(self, line: str) -> list[str]:
        """The words that `runner` got of a line with Tabs in it, once Enter was pressed."""
        self._typed.unlink(missing_ok=True)
        seen = self.screen.count(PROMPT)
        self._send(line + "\r")
        wait_for(lambda: self._read() or self._typed.exists(), 60, f"the words of {line!r}")
        words = self._typed.read_text().splitlines()
        self._await_prompt(seen)
        return words

    def look(self, line: str, until: str) -> str:
        """The screen after a line with Tabs, without Enter, once `until` stands there.

        The line is left standing, so this is the last thing this person does: an interrupt would
        let the shell drop some of what is typed next.
        """
        begin = len(self.screen)
        self._send(line)
        wait_for(lambda: self._read() or until in self.screen[begin:], 60, until)
        return self.screen[begin:]

    def _await_prompt(self, seen: int) -> None:
        wait_for(lambda: self._read() or self.screen.count(PROMPT) > seen, 60, "a prompt")

    def _send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def _read(self) -> bool:
        """Takes what the shell wrote; never true."""
        while select.select([self._fd], [], [], 0)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.screen += data.decode("utf-8", "replace")
        return False

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self._fd)
        os.waitpid(self.pid, 0)

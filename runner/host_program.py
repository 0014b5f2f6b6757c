"""Runs a part of the worker program on a host that has no worker: in memory, under its Python.

The bundle goes over stdin, and its modules are imported from it, so that nothing is written there
but what the part itself writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runner import content, stub
from runner.carriers import Session
from runner.carriers.base import OnLine
from runner.errors import ProvisionError, TimedOut
from runner.host_facts import read_table

_DONE = "runner-made "
_FAILED = "runner-failed "
_BOOT = """
import importlib.util,json,sys,zlib
i=sys.stdin.buffer
n=int(i.read(8))
T=json.loads(zlib.decompress(i.read(n)))
class F:
    def find_spec(s,n,p=None,t=None):
        b=n.replace(".","/")
        for f in (b+".py",b+"/__init__.py"):
            if f in T:
                k=[f] if f.endswith("__init__.py") else None
                m=importlib.util.spec_from_loader(n,s,origin="/bundle/"+f,is_package=bool(k))
                m.has_location=True
                return m
    def create_module(s,m): return None
    def exec_module(s,m):
        f=m.__spec__.origin
        exec(compile(T[f[8:]],f,"exec",dont_inherit=True),m.__dict__)
sys.meta_path.insert(0,F())
m=importlib.import_module(sys.argv[1])
sys.exit(m.main(json.loads(i.read())))
"""


class Refusal(Exception):
    """The part said why it did not do it."""

    def __init__(self, kind: str, said: Sequence[str]) -> None:
        super().__init__(kind)
        self.kind = kind
        self.said = tuple(said)


def run(
    session: Session,
    host: str,
    python: str,
    module: str,
    request: Mapping[str, Any],
    *,
    timeout_s: float,
    on_line: OnLine | None = None,
) -> dict[str, Any]:
    """What the module's `main` said when it had done it. Raises Refusal, HostError,
    ProvisionError.
    """
    argv = [python, "-I", "-S", "-B", "-c", stub.as_word(_BOOT), module]
    data = stub.packed(content.bundle().data) + json.dumps(dict(request)).encode()

    def on_word(line: str) -> None:
        if on_line is not None and not line.startswith((_DONE, _FAILED)):
            on_line(line)

    try:
        done = session.run(argv, input=data, timeout_s=timeout_s, on_line=on_word)
    except TimedOut as error:
        raise ProvisionError(f"{host}: it took more than {timeout_s:.0f} s") from error
    for line in reversed(done.text.splitlines()):
        if line.startswith(_DONE) and (body := read_table(line[len(_DONE) :])):
            return body
        if line.startswith(_FAILED) and (body := read_table(line[len(_FAILED) :])):
            said = body.get("said")
            lines = [str(each) for each in said] if isinstance(said, list) else []
            raise Refusal(str(body.get("kind")), lines)
    last = (done.error_text or done.text or f"status {done.status}").splitlines()[-1]
    raise ProvisionError(f"{host}: {python} there broke off", last[:300])

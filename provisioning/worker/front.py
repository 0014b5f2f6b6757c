"""torchrun's agent on one node, without a listener beyond loopback. Run by the job's own Python.

    python front.py NPROC REPORT STOP LAUNCHER -- ARGV…

torchrun as a script always opens its rendezvous on every interface and unpickles what comes. Here
the agent is the same, but the store that the ranks meet in is ours: a socket bound to 127.0.0.1,
handed over by its descriptor, and used by the ranks as it is (TORCHELASTIC_USE_AGENT_STORE).

REPORT gets the ranks' true ends, {"0": {"code": -9, "t": …}}, which torchrun's exit status hides.
While STOP exists the ranks were asked to stop by someone else: the agent sends no signal then.
Without torch in that Python the ranks are started with the same variables and no store.
LAUNCHER is `torchrun` or `mpirun` (mpi.py); the ranks of both meet in the same store.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

LOOPBACK = "127.0.0.1"
MONITOR_S = 0.1
USUAL_GRACE_S = 30.0
"""What torchrun gives the other ranks when one has failed, where nobody says RUNNER_GRACE_S."""


def main(argv: List[str]) -> int:
    """The exit status of the first rank that failed, 0 when none did."""
    nproc, report, stop, launcher = int(argv[0]), argv[1], argv[2], argv[3]
    command = argv[5:]
    # the launcher ends the ranks itself; a TERM that reaches this process is not for it (and must
    # not be ignored either: the ranks would inherit that)
    signal.signal(signal.SIGTERM, lambda *_: None)
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    listener.listen(1024)
    port = listener.getsockname()[1]
    store: Any = None
    try:
        import torch.distributed  # noqa: F401
    except ImportError:
        listener.close()
        store = None
    else:
        store = host_store(listener)
    if launcher == "mpirun":
        ends = run_mpirun(command, nproc, port, stop, has_store=store is not None)
    elif store is None:
        ends = run_plain(command, nproc, port, stop)
    else:
        ends = run_agent(command, nproc, store, port, stop)
    with open(report + ".tmp", "w") as file:
        json.dump({str(rank): {"code": code, "t": t} for rank, (code, t) in ends.items()}, file)
    os.rename(report + ".tmp", report)
    failed = sorted((t, code) for code, t in ends.values() if code)
    if not failed:
        return 0
    code = failed[0][1]
    return 128 - code if code < 0 else code


def host_store(listener: socket.socket) -> Any:
    """The store that ranks meet in, on a socket that is bound to loopback already."""
    from torch.distributed import TCPStore

    return TCPStore(
        host_name=LOOPBACK,
        port=listener.getsockname()[1],
        world_size=None,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=False,  # up to torch 2.6 libuv's takes no socket that is there already
    )


def run_agent(
    command: List[str], nproc: int, store: Any, port: int, stop: str
) -> Dict[int, Tuple[int, float]]:
    """Run the ranks under torchrun's agent; rank to (exit code, time) of those seen to end."""
    folder = stop + ".agent"
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
    from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

    class OneNode(RendezvousHandler):  # type: ignore[misc]
        """One node that is always complete, meeting in the store above."""

        def get_backend(self) -> str:
            return "static"

        @property
        def use_agent_store(self) -> bool:
            return True

        def next_rendezvous(self) -> Any:
            return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, port))

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            return None

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return os.environ.get("RUNNER_RUN", "run")

        def shutdown(self) -> bool:
            return True

    ends: Dict[int, Tuple[int, float]] = {}

    class QuietAgent(LocalElasticAgent):  # type: ignore[misc]
        """torchrun's agent, silent towards ranks that someone else has asked to stop."""

        def _start_workers(self, group: Any) -> Any:
            started = super()._start_workers(group)
            context = self._pcontext
            close = context._close

            def close_quietly(*args: Any, **options: Any) -> None:
                while os.path.exists(stop) and any(map(_runs, context.pids().values())):
                    time.sleep(MONITOR_S)
                if len(args) < 2:
                    options["timeout"] = grace_s()
                note_ends()
                close(*args, **options)
                note_ends()

            context._close = close_quietly
            return started

    def note_ends(*_: Any) -> None:
        """When each rank ended, to the millisecond: the agent looks ten times a second only, and
        what it says itself (failure.timestamp) is cut to whole seconds."""
        context = agent._pcontext
        for rank, handler in context.subprocess_handlers.items() if context is not None else ():
            code = _ended(handler.proc.pid)
            if code is None:
                code = handler.proc.returncode  # the agent was quicker to reap it
            if code is not None:
                ends.setdefault(int(rank), (int(code), time.time()))

    spec = WorkerSpec(
        role="default",
        local_world_size=nproc,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=OneNode(),
        max_restarts=0,
        monitor_interval=MONITOR_S,
        master_addr=LOOPBACK,
        master_port=port,
    )
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    logs = DefaultLogsSpecs(log_dir=folder)
    agent = QuietAgent(spec, logs_specs=logs, start_method="spawn")
    signal.signal(signal.SIGCHLD, note_ends)
    result = agent.run()
    for rank, failure in result.failures.items():
        ends.setdefault(int(rank), (int(failure.exitcode), float(failure.timestamp)))
    return ends


def run_plain(command: List[str], nproc: int, port: int, stop: str) -> Dict[int, Tuple[int, float]]:
    """Start the ranks with torchrun's variables and wait; the first failure ends the others."""
    ranks: Dict[int, "subprocess.Popen[bytes]"] = {}
    ends: Dict[int, Tuple[int, float]] = {}

    def note_ends(*_: Any) -> None:
        for rank, process in list(ranks.items()):
            code = _ended(process.pid)
            if code is not None:
                ends.setdefault(rank, (code, time.time()))

    signal.signal(signal.SIGCHLD, note_ends)
    for rank in range(nproc):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(nproc))
        env.update(LOCAL_WORLD_SIZE=str(nproc), MASTER_ADDR=LOOPBACK, MASTER_PORT=str(port))
        ranks[rank] = subprocess.Popen(command, env=env)
    failed_at = 0.0
    while len(ends) < nproc:
        note_ends()
        if any(code for code, _ in ends.values()) and not os.path.exists(stop):
            # by pid: Popen's own way would reap a rank that has just ended, its end unseen
            others = {rank: process.pid for rank, process in ranks.items() if rank not in ends}
            if not failed_at:
                failed_at = time.monotonic()
                _send(others, signal.SIGTERM)
            elif time.monotonic() - failed_at > grace_s():
                _send(others, signal.SIGKILL)
        time.sleep(MONITOR_S)
    for process in ranks.values():
        process.wait()
    return ends


def run_mpirun(
    command: List[str], nproc: int, port: int, stop: str, *, has_store: bool
) -> Dict[int, Tuple[int, float]]:
    """Have mpirun start the ranks and wait; the first failure ends the others.

    Raises SystemExit when mpirun itself could not start them; dies of the signal that killed it.
    """
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import mpi

    folder = stop + mpi.ENDS
    os.makedirs(folder, exist_ok=True)
    plan = dict(json.loads(os.environ["RUNNER_RANK_PLAN"]), ends=folder)
    env = dict(os.environ, MASTER_ADDR=LOOPBACK, MASTER_PORT=str(port))
    env["RUNNER_RANK_PLAN"] = json.dumps(plan)
    if has_store:
        # torch 2.4 asks for the count where it is told of a store
        env.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    process = subprocess.Popen(mpi.command(nproc, command), env=env, stdin=subprocess.DEVNULL)
    failed_at = 0.0
    while process.poll() is None:
        if any(code for code, _ in mpi.read_ends(folder).values()) and not os.path.exists(stop):
            if not failed_at:
                failed_at = time.monotonic()
                _send(mpi.pids(folder), signal.SIGTERM)
            elif time.monotonic() - failed_at > grace_s():
                _send(mpi.pids(folder), signal.SIGKILL)
        time.sleep(MONITOR_S)
    ends = mpi.read_ends(folder)
    if len(ends) < nproc and process.returncode < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -process.returncode)
    if len(ends) < nproc and not any(code for code, _ in ends.values()):
        raise SystemExit(process.returncode or 1)
    return ends


def _send(ranks: Dict[int, int], number: int) -> None:
    for pid in ranks.values():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def grace_s() -> float:
    """Seconds that the other ranks have once one has failed: the run's own grace."""
    return float(os.environ.get("RUNNER_GRACE_S") or USUAL_GRACE_S)


def _ended(pid: int) -> Optional[int]:
    """The exit code of a child that has ended, negative for a signal; it stays to be reaped."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _runs(pid: int) -> bool:
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""From an empty folder to a pulled, trained checkpoint: a host behind a jump, a container."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from tests.helpers.pinned import pin_base
from tests.helpers.wait import wait_for
from tests.helpers.wheels import make_wheel
from tests.rig.engine import RigEngine
from tests.rig.gpus import FakeGpus
from tests.rig.hosts import RigHost
from tests.rig.operator import REPOSITORY, Operator

HOST = """ssh = "{alias}"
image = "cpu"
workspace = "~/whole-path"
slots = 3
"""
OWN = """import argparse, sys
import small, torch
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
where = "overlays" not in torch.__file__
print(parser.parse_args().seed, small.VERSION, where, sys.executable)
"""
HOLD = (
    "import hold_gpu, time; hold_gpu.hold(2000); print('held', flush=True); time.sleep({seconds})"
)


@pytest.fixture(scope="module")
def gpu1(
    make_operator: Callable[[], Operator], jump_host: RigHost, docker: RigEngine
) -> Iterator[Operator]:
    """An operator whose host gpu1 has been added and provisioned."""
    operator = make_operator()
    run(operator, "init")
    pin_base(operator.project, docker)
    (operator.project / "hosts").mkdir(exist_ok=True)
    (operator.project / "hosts" / "gpu1.toml").write_text(HOST.format(alias=jump_host.alias))
    shutil.copy(REPOSITORY / "tests" / "rig" / "hold_gpu.py", operator.project)
    run(operator, "provision", "host=gpu1", limit_s=400)
    yield operator
    docker.remove_containers()


def run(operator: Operator, *words: str, status: int = 0, limit_s: float = 120) -> str:
    """`runner WORDS…` must end with `status`; its stdout."""
    done = operator.runner(*words, limit_s=limit_s)
    assert done.returncode == status, (words, done.stdout, done.stderr)
    return done.stdout.decode()


def read(operator: Operator, run_id: str) -> dict[str, object]:
    """The run as `status --json` shows it."""
    return json.loads(run(operator, "status", run_id, "--json"))  # type: ignore[no-any-return]


def test_job_is_trained_followed_and_pulled(gpu1: Operator) -> None:
    run_id = run(gpu1, "submit", "host=gpu1", "job=dqn", "seed=5", "steps=1500", "eval_every=500")
    assert run_id.startswith("dqn-") and run_id.count("\n") == 1
    run_id = run_id.strip()
    log = run(gpu1, "tail", run_id)
    assert "device cpu" in log.splitlines()[0]
    found = read(gpu1, run_id)
    assert (found["outcome"], found["step"], found["host"]) == ("done", 1500, "gpu1")
    assert run(gpu1, "pull", run_id).strip() == f"results/{run_id}"
    results = gpu1.project / "results" / run_id
    assert (results / "logs" / "rank-0.log").read_text() == log

    newest = sorted((results / "checkpoints").iterdir())[-1]
    manifest = json.loads((newest / "manifest.json").read_text())
    for name, facts in manifest["files"].items():
        assert hashlib.sha256((newest / name).read_bytes()).hexdigest() == facts["sha256"]
    torch = pytest.importorskip("torch", reason="left out: torch: not installed")
    model = torch.load(newest / "model.pt", weights_only=True)
    assert model["step"] == 1500
    assert manifest["metrics"]["eval/return"] == found["metrics"]["eval/return"]  # type: ignore[index]
    assert curve(results / "logs", "eval/return")[-1] == (
        1500,
        pytest.approx(manifest["metrics"]["eval/return"], rel=1e-5),
    )


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    """The scalars of a tag in the event files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(tag)]


def test_argv_typed_is_argv_run(gpu1: Operator) -> None:
    words = ["a b", "*", ";x", "$HOME", "", "--help", "host=z", "100%h:%p", "q\"'\\", "ü\n"]
    program = "import sys; print(ascii(sys.argv[1:]))"
    run_id = run(
        gpu1, "submit", "host=gpu1", "--wait", "--", "python3", "-c", program, *words
    ).strip()
    assert run(gpu1, "tail", run_id).strip() == ascii(words)


def test_a_script_of_ones_own_with_packages_of_its_own(gpu1: Operator) -> None:
    """Flags, an overlay in the container, from wheels that travel with the code."""
    (gpu1.project / "wheels").mkdir()
    make_wheel(gpu1.project / "wheels", "small", "1.0")
    (gpu1.project / "own.py").write_text(OWN)
    assert run(gpu1, "job", "add", "own.py") == "agents/own.toml\n"
    job = gpu1.project / "agents" / "own.toml"
    job.write_text(job.read_text().replace("requirements = []", 'requirements = ["small"]'))
    words = ("env.PIP_NO_INDEX=1", "env.PIP_FIND_LINKS=wheels", "seed=1..2", "--wait")
    first, second = run(gpu1, "submit", "host=gpu1", "job=own", *words).split()
    lines = run(gpu1, "tail", first).splitlines() + run(gpu1, "tail", second).splitlines()
    said = [line for line in lines if not line.startswith("runner: ")]
    where = "/workspace/.runner/overlays/"
    assert [line.split(where)[0] for line in said] == ["1 1.0 True ", "2 1.0 True "]
    assert len([line for line in lines if line == "runner: installing 1 package: small"]) == 1


def test_pull_again_brings_nothing_and_keeps_what_people_wrote(gpu1: Operator) -> None:
    program = "open('made.txt', 'w').write('by the job')"
    run_id = run(gpu1, "submit", "host=gpu1", "--wait", "--", "python3", "-c", program).strip()
    run(gpu1, "pull", run_id)
    made = gpu1.project / "results" / run_id / "work" / "made.txt"
    assert made.read_text() == "by the job"
    made.write_text("by a person")
    (made.parent / "notes.txt").write_text("mine")
    report = json.loads(run(gpu1, "pull", run_id, "--json"))
    assert report["files"] == 0
    assert made.read_text() == "by a person"
    assert (made.parent / "notes.txt").read_text() == "mine"


def test_client_may_vanish_after_the_id(gpu1: Operator) -> None:
    program = "import time; print('on'); time.sleep(4); print('off')"
    words = ["submit", "host=gpu1", "--tail", "--", "python3", "-c", program]
    with gpu1.popen(
        [sys.executable, "-m", "runner", *words], stdout=PIPE, stderr=DEVNULL
    ) as submit:
        assert submit.stdout is not None
        assert submit.stdout.readline() == b"on\n"
        submit.send_signal(signal.SIGKILL)
    listed = json.loads(run(gpu1, "ps", "host=gpu1", "--json"))["runs"][-1]
    assert listed["state"] == "running"
    run(gpu1, "wait", listed["id"])
    assert run(gpu1, "tail", listed["id"]) == "on\noff\n"


def test_one_gpu_run_waits_for_another_and_cancel_frees_the_card(
    gpu1: Operator, fake_gpus: FakeGpus, docker: RigEngine
) -> None:
    fake_gpus.set_cards(1)
    run(gpu1, "provision", "host=gpu1", limit_s=400)
    hold = ["--", "python3", "-c", HOLD.format(seconds=600)]
    first = run(gpu1, "submit", "host=gpu1", "gpus=1", *hold).strip()
    wait_for(lambda: fake_gpus.used_mib(0) >= 2000, 30, "the first run to hold its card")
    second = run(
        gpu1,
        *["submit", "host=gpu1", "gpus=1", "--", "python3", "-c"],
        "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])",
    ).strip()
    waiting = read(gpu1, second)
    assert waiting["state"] == "queued"
    assert first in str(waiting["reason"])
    neighbour = run(gpu1, "submit", "host=gpu1", "gpus=0", "--", "sleep", "600").strip()
    began = time.monotonic()
    run(gpu1, "cancel", first)
    assert time.monotonic() - began < 15
    assert fake_gpus.used_mib(0) < 100
    run(gpu1, "wait", second)
    assert run(gpu1, "tail", second).strip() == fake_gpus.uuids[0]
    assert read(gpu1, neighbour)["state"] == "running"
    run(gpu1, "cancel", neighbour, "--now")
    assert read(gpu1, first)["outcome"] == "cancelled"
    # more cards than there are: refused, no run made
    run(gpu1, "submit", "host=gpu1", "gpus=2", "--", "true", status=2)


def test_two_ranks_twice_at_once_listen_on_loopback_only(gpu1: Operator) -> None:
    (gpu1.project / "ranks.py").write_text(RANKS)
    words = ["submit", "host=gpu1", "nproc=2", "gpus=0", "--", "python3", "ranks.py"]
    runs = [run(gpu1, *words).strip() for _ in range(2)]
    run(gpu1, "wait", *runs)
    for run_id in runs:
        log = run(gpu1, "tail", run_id)
        assert "sum 3.0" in log
        listening = [line.split()[1] for line in log.splitlines() if line.startswith("listens ")]
        assert listening
        assert all(address.startswith("127.") for address in listening), listening
        assert "sum 3.0" in run(gpu1, "tail", run_id, "--rank", "1")


RANKS = """
import os, socket, struct, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([float(rank + 1)])
dist.all_reduce(value)
print("sum", value.item(), flush=True)
if rank == 0:
    for name in ("tcp", "tcp6"):
        for line in open("/proc/net/" + name).read().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state != "0A":
                continue
            address, port = local.split(":")
            raw = bytes.fromhex(address)
            if name == "tcp":
                text = socket.inet_ntoa(raw[::-1])
            else:
                words = struct.unpack("<4I", raw)
                packed = struct.pack(">4I", *words)
                text = socket.inet_ntop(socket.AF_INET6, packed)
                text = "127.mapped" if text == "::1" or text.startswith("::ffff:127.") else text
            print("listens", text, int(port, 16), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def holders(value: bytes, *places: Path) -> list[str]:
    """Files below these places that hold a value in their name or content."""
    found = []
    for place in places:
        for folder, _, names in os.walk(place):
            for name in names:
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    content = path.read_bytes()
                    if value in content or value in os.fsencode(name):
                        found.append(str(path))
    return found


def test_a_secret_stands_in_no_record_log_image_or_command_line(
    gpu1: Operator, jump_host: RigHost, docker: RigEngine
) -> None:
    value = "s3cret-" + os.urandom(9).hex()
    program = (
        "import hashlib, os, pathlib, time\n"
        "a = os.environb[b'API_KEY']\n"
        "b = pathlib.Path(os.environ['RUNNER_SECRETS'], 'API_KEY').read_bytes()\n"
        "assert a == b\n"
        "print(hashlib.sha256(a).hexdigest(), flush=True)\n"
        "time.sleep(600)"
    )
    words = ["submit", "host=gpu1", "gpus=0", "secret.API_KEY", "--", "python3", "-c", program]
    done = gpu1.runner(*words, env={"API_KEY": value})
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.decode().strip()
    known = hashlib.sha256(value.encode()).hexdigest()
    wait_for(lambda: known in run(gpu1, "tail", run_id, "--no-follow"), 30, "the secret's digest")
    workspace = jump_host.home / "whole-path"
    kept = str(workspace / ".runner/secrets" / run_id / "API_KEY")
    encoded = base64.b64encode(value.encode())
    for text in (value.encode(), encoded):
        found = holders(text, workspace, gpu1.home)
        assert found == ([kept] if text == value.encode() else []), found
        containers = docker.docker("ps", "-aq").stdout.split()
        images = docker.docker("images", "-q").stdout.split()
        assert text.decode() not in docker.docker("inspect", *containers, *images).stdout
        for argv in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                assert text not in argv.read_bytes(), argv
        assert text not in done.stderr + done.stdout
        assert text.decode() not in run(gpu1, "status", run_id, "--json")
    assert os.stat(kept).st_mode & 0o077 == 0
    assert read(gpu1, run_id)["secrets"] == ["API_KEY"]
    # through a restart, and gone with the run
    run(gpu1, "cancel", run_id)
    assert holders(value.encode(), workspace, gpu1.home) == []
    run(gpu1, "reproduce", run_id, status=2)


def test_host_key_that_changed_is_refused_before_anything_is_sent(
    gpu1: Operator, jump_host: RigHost, sshd: RigHost
) -> None:
    logins = jump_host.sshd_log.read_text().count("Accepted publickey")
    shutil.rmtree(gpu1.runtime, ignore_errors=True)  # the warm connection
    gpu1.runtime.mkdir(mode=0o700)
    gpu1.trust_wrongly(jump_host)
    try:
        done = gpu1.runner("submit", "host=gpu1", "--", "true")
    finally:
        assert gpu1.rig is not None
        gpu1.trust(*gpu1.rig.hosts)
    assert done.returncode == 3, done.stderr
    assert done.stdout == b""
    assert b"SHA256:" in done.stderr
    assert jump_host.sshd_log.read_text().count("Accepted publickey") == logins


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["submit", "host=gpu2", "job=dqn"], 6, "gpu1"),
        (["submit", "host=gpu1", "job=dqm"], 2, "dqn"),
        (["submit", "host=gpu1", "job=dqn", "learnig_rate=1"], 2, "learnig_rate"),
        (["submit", "host=gpu1", "job=dqn", "steps=many"], 2, "steps"),
        (["submit", "host=gpu1", "job=dqn", "fast"], 2, "fast"),
        (["submit", "host=gpu1", "job=dqn", "image=nope"], 2, "nope"),
        (["provision", "host=gpu1", "image=nope"], 2, "nope"),
        (["status", "dqn-zzzzz"], 6, "dqn-zzzzz"),
        (["tail", "dqn-zzzzz"], 6, "dqn-zzzzz"),
        (["cancel", "dqn-zzzzz"], 6, "dqn-zzzzz"),
    ],
)
def test_bad_input_gets_one_line_and_its_status(
    gpu1: Operator, words: list[str], status: int, said: str
) -> None:
    before = run(gpu1, "ps", "--all", "--json")
    done = gpu1.runner(*words)
    text = done.stderr.decode()
    assert (done.returncode, done.stdout) == (status, b""), text
    assert said in text and "Traceback" not in text
    count = len(json.loads(before)["runs"])
    assert len(json.loads(run(gpu1, "ps", "--all", "--json"))["runs"]) == count


def test_host_without_docker_rights_is_named(gpu1: Operator, sshd: RigHost) -> None:
    (gpu1.project / "hosts" / "plain.toml").write_text(f'ssh = "{sshd.alias}"\nimage = "cpu"\n')
    try:
        done = gpu1.runner("provision", "host=plain", limit_s=60)
        assert done.returncode == 4, done.stderr
        assert b"plain" in done.stderr and b"Traceback" not in done.stderr
        done = gpu1.runner("submit", "host=plain", "--", "true", limit_s=60)
        assert done.returncode == 4, done.stderr
    finally:
        os.unlink(gpu1.project / "hosts" / "plain.toml")


def test_key_that_opens_nothing_is_named(gpu1: Operator, sshd: RigHost, jump_host: RigHost) -> None:
    shutil.rmtree(gpu1.runtime, ignore_errors=True)
    gpu1.runtime.mkdir(mode=0o700)
    gpu1.use_key("other_ed25519")
    try:
        done = gpu1.runner("submit", "host=gpu1", "--", "true")
    finally:
        gpu1.use_key("id_ed25519")
    assert done.returncode == 3, done.stderr
    assert b"key" in done.stderr.lower()


def test_container_has_nothing_to_give_away(gpu1: Operator, docker: RigEngine) -> None:
    program = (
        "import os; s = open('/proc/self/status').read();"
        "print([l for l in s.splitlines() if l.split(':')[0] in ('CapEff', 'NoNewPrivs')]);"
        "print(os.getuid() != 0, os.access('/usr', os.W_OK))"
    )
    words = ["host=gpu1", "gpus=0", "--wait", "--", "python3", "-c", program]
    run_id = run(gpu1, "submit", *words).strip()
    lines = run(gpu1, "tail", run_id).splitlines()
    assert "CapEff:\\t0000000000000000" in lines[0] and "NoNewPrivs:\\t1" in lines[0]
    assert lines[1] == "True False"
    ports = docker.docker("ps", "--format", "{{.Ports}}").stdout.strip()
    assert not ports


def test_stacks_are_read_in_a_container_without_capabilities(gpu1: Operator) -> None:
    program = (
        "import time\ndef hangs_here(): time.sleep(600)\nprint('up', flush=True)\nhangs_here()"
    )
    for words in ([], ["nproc=2"]):
        run_id = run(
            gpu1, "submit", "host=gpu1", "gpus=0", *words, "--", "python3", "-c", program
        ).strip()
        for rank in range(1 + len(words)):
            look = ("tail", run_id, "--no-follow", "--rank", str(rank))
            wait_for(lambda look=look: "up" in run(gpu1, *look), 60, "the rank")
        shown = json.loads(run(gpu1, "stack", run_id, "--json"))
        assert shown["problem"] is None
        assert [row["rank"] for row in shown["ranks"]] == list(range(1 + len(words)))
        assert all("hangs_here (<string>:2)" in row["text"] for row in shown["ranks"])
        run(gpu1, "cancel", run_id, "--now")

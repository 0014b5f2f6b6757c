"""`[setup] requirements`, with the real pip and packages made here: no network is needed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import time
from pathlib import Path

import overlay
import pytest

from runner.app import space, submit
from runner.app.why import why
from runner.errors import SpecError
from runner.inventory import read_job
from runner.show.reasons import explain
from runner.spec import parse_submit
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import wait_for
from tests.helpers.wheels import make_held_sdist, make_wheel, pip_words

SHOW = "import small, sys; print(small.VERSION, sys.executable)\n"
LIMIT_S = 120.0


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """A folder of packages, all that pip knows."""
    folder = tmp_path / "links"
    folder.mkdir()
    make_wheel(folder, "small", "1.0")
    return folder


def job(worker: LocalWorker, *requirements: str, program: str = SHOW) -> None:
    worker.file("show.py", program)
    worker.file("pip.py", "raise SystemExit('the code was run')")
    worker.file(
        "agents/show.toml",
        'command = ["python", "show.py"]\nrestarts = 0\n'
        f"[setup]\nrequirements = {json.dumps(requirements)}\n",
    )


def begin(worker: LocalWorker, links: Path, *words: str) -> str:
    request = parse_submit(["job=show", *pip_words(links), *words], None)
    return submit.submit(worker.ctx, request, lambda run: None)[0]


def overlays(worker: LocalWorker) -> list[Path]:
    folder = worker.workspace / ".runner" / "overlays"
    return sorted(path for path in folder.glob("*") if path.is_dir())


def test_packages_are_made_once_and_found_again(local_worker: LocalWorker, links: Path) -> None:
    job(local_worker, "small==1.0")
    first = begin(local_worker, links)
    assert local_worker.wait(first, LIMIT_S).status.outcome == "done"
    lines = local_worker.log(first).decode().splitlines()
    assert lines[0] == "runner: installing 1 package: small"
    assert lines[1].startswith("runner: installed 1 package in ")
    (made,) = overlays(local_worker)
    assert lines[2] == f"1.0 {made}/bin/python"
    # the index may be gone by then
    (links / "small-1.0-py3-none-any.whl").unlink()
    again = begin(local_worker, links)
    assert local_worker.wait(again, LIMIT_S).status.outcome == "done"
    assert local_worker.log(again).decode().splitlines() == lines[2:]
    assert overlays(local_worker) == [made]
    collected(local_worker, made)


def test_the_environment_behind_it_is_seen_and_programs_go_first(
    local_worker: LocalWorker, links: Path
) -> None:
    make_wheel(links, "gymnasium", "0.0.1", text="NAME = 'ours'")
    job(
        local_worker,
        "small",
        "gymnasium==0.0.1",
        program="import click, gymnasium, shutil; print(gymnasium.NAME, shutil.which('python'))",
    )
    run = begin(local_worker, links)
    assert local_worker.wait(run, LIMIT_S).status.outcome == "done"
    (made,) = overlays(local_worker)
    assert local_worker.log(run).decode().splitlines()[-1] == f"ours {made}/bin/python"


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="left out: torch: not installed"
)
@pytest.mark.parametrize("wanted", ["torch==0.0.1", "needy"])
def test_torch_cannot_be_replaced(local_worker: LocalWorker, links: Path, wanted: str) -> None:
    make_wheel(links, "torch", "0.0.1")
    make_wheel(links, "needy", "1.0", "torch==0.0.1")
    job(local_worker, wanted)
    run = begin(local_worker, links)
    cause = local_worker.wait(run, LIMIT_S).status.cause
    assert cause is not None and cause["kind"] == "setup"
    from importlib.metadata import version

    assert "torch==0.0.1" in cause["text"], cause
    assert f"the worker has torch {version('torch')}" in cause["text"]
    assert "\n" not in cause["text"]
    assert overlays(local_worker) == []


def test_a_package_that_is_nowhere_is_named(local_worker: LocalWorker, links: Path) -> None:
    job(local_worker, "small", "no-such-package")
    run = begin(local_worker, links)
    cause = local_worker.wait(run, LIMIT_S).status.cause
    assert cause is not None and cause["kind"] == "setup"
    assert "no-such-package" in cause["text"]
    assert b"runner: pip: " in local_worker.log(run)
    assert b"small.VERSION" not in local_worker.log(run)


def test_pip_that_is_killed_is_told_by_its_signal(
    local_worker: LocalWorker, links: Path, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    make_held_sdist(links, "small", "2.0", held)
    job(local_worker, "small==2.0")
    run = begin(local_worker, links)
    wait_for(held.with_suffix(".at").exists, LIMIT_S, "pip to build")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"pip" in words and str(local_worker.workspace).encode() in words[0]:
            os.kill(int(path.parent.name), signal.SIGKILL)
    cause = local_worker.wait(run, LIMIT_S).status.cause
    held.unlink()
    assert cause is not None
    assert cause["text"].endswith("requirements: pip was ended by signal 9 (SIGKILL)"), cause


def test_half_of_one_is_never_used(local_worker: LocalWorker, links: Path, tmp_path: Path) -> None:
    job(local_worker, "small==1.0")
    assert local_worker.wait(begin(local_worker, links), LIMIT_S).status.outcome == "done"
    (made,) = overlays(local_worker)
    (info,) = made.glob("lib/*/site-packages/small-1.0.dist-info")
    for part in (made / overlay.READY, made / "bin" / "python", info):
        part.rename(tmp_path / "away")
        assert not overlay.is_ready(str(made))
        (tmp_path / "away").rename(part)
        assert overlay.is_ready(str(made))
    shutil.rmtree(info)
    run = begin(local_worker, links)
    assert local_worker.wait(run, LIMIT_S).status.outcome == "done"
    assert b"installed 1 package" in local_worker.log(run)


def test_others_wait_for_who_makes_it_and_either_can_be_cancelled(
    local_worker: LocalWorker, links: Path, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    make_held_sdist(links, "small", "2.0", held)
    local_worker.host(slots=3)
    job(local_worker, "small==2.0")
    maker = begin(local_worker, links)
    wait_for(held.with_suffix(".at").exists, LIMIT_S, "pip to build")
    waiter, leaver = begin(local_worker, links), begin(local_worker, links)
    for run in (waiter, leaver):
        local_worker.until_logged(run, "waits for another run", limit_s=LIMIT_S)
    assert local_worker.status(maker).status.state == "starting"
    told = explain(why(local_worker.ctx, local_worker.ref(maker)), time.time())
    assert told.text.endswith(": installing 1 package: small")
    local_worker.cancel(leaver)
    assert local_worker.status(leaver).status.outcome == "cancelled"
    local_worker.cancel(maker)
    assert local_worker.causes(maker) == ["cancelled"]
    assert not local_worker.members(maker)
    assert not [path for path in overlays(local_worker) if overlay.is_ready(str(path))]
    held.unlink()
    assert local_worker.wait(waiter, LIMIT_S).status.outcome == "done"
    assert local_worker.log(waiter).endswith(b"/bin/python\n")


def test_a_killed_launcher_leaves_nothing_that_is_used(
    local_worker: LocalWorker, links: Path, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    make_held_sdist(links, "small", "2.0", held)
    job(local_worker, "small==2.0")
    run = begin(local_worker, links)
    wait_for(held.with_suffix(".at").exists, LIMIT_S, "pip to build")
    local_worker.kill(local_worker.launcher(run))
    wait_for(lambda: local_worker.state(run).get("attempt") == 2, LIMIT_S, "another attempt")
    held.unlink()
    assert local_worker.wait(run, LIMIT_S).status.outcome == "done"
    assert local_worker.causes(run) == ["launcher-lost", None]


def test_a_list_in_a_file_and_what_is_refused_before_anything(
    local_worker: LocalWorker, links: Path
) -> None:
    job(local_worker)
    local_worker.file("agents/show.toml", 'entry = "a.py"\n[setup]\nrequirements = "needs.txt"\n')
    local_worker.file("agents/a.py", SHOW)
    with pytest.raises(SpecError, match=r"needs\.txt.*No such file"):
        begin(local_worker, links)
    local_worker.file("needs.txt", "# ours\nsmall==1.0\n")
    assert read_job(local_worker.ctx.project, "show").requirements == ("small==1.0",)
    local_worker.file("needs.txt", "\ufeffsmall==1.0\r\n")
    assert read_job(local_worker.ctx.project, "show").requirements == ("small==1.0",)
    local_worker.file("needs.txt", "small==1.0\nsix; import os\n")
    with pytest.raises(SpecError, match=r"needs\.txt:2: 'six; import os' must be one package"):
        begin(local_worker, links)
    local_worker.file("needs.txt", "small==1.0\n--extra-index-url https://x\n")
    with pytest.raises(SpecError, match=r"needs\.txt:2: '--extra-index-url"):
        begin(local_worker, links)
    assert not local_worker.workspace.exists()


def collected(local_worker: LocalWorker, made: Path) -> None:
    """gc removes what was not used for long, and that alone."""
    space.collect(local_worker.ctx, "local")
    assert overlays(local_worker) == [made]
    old = time.time() - overlay.UNUSED_S - 60
    os.utime(made / overlay.READY, (old, old))
    said = space.collect(local_worker.ctx, "local", dry=True)
    assert any("overlays" in what for what, _, _ in said.items)
    assert overlays(local_worker) == [made]
    space.collect(local_worker.ctx, "local")
    assert overlays(local_worker) == []


def test_the_digest_is_of_the_packages_and_of_the_base() -> None:
    base = {
        **dict.fromkeys(("executable", "prefix", "version", "abi"), "x"),
        "paths": ["/a"],
        "packages": {"torch": "2.6"},
    }
    one = overlay.digest(["a", "b"], base)
    assert overlay.digest(["b", "a"], base) == one
    assert overlay.digest(["a"], base) != one
    assert overlay.digest(["a", "b"], {**base, "packages": {"torch": "2.7"}}) != one
    assert overlay.digest(["a", "b"], {**base, "executable": "y"}) != one


def test_what_stays_as_the_base_has_it() -> None:
    there = {"torch": "2.6", "nvidia-nccl-cu12": "2.2", "numpy": "2.4", "gymnasium": "1.4"}
    assert set(overlay.frozen_of(there, ["gymnasium"])) == {"torch", "nvidia-nccl-cu12", "numpy"}
    assert "numpy" not in overlay.frozen_of(there, ["NumPy"])


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("ERROR: No matching distribution found for x\n", "No matching distribution found for x"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(…)'\n"
            "ERROR: Could not find a version\nERROR: No matching distribution found for x\n",
            "No matching distribution found for x (the package index was not reached)",
        ),
        (
            "ERROR: No matching distribution found for torch==9\n",
            "asked for: torch==9; the worker has 2.6",
        ),
        (
            "ERROR: Cannot install\n\nThe conflict is caused by:\n"
            "    a 1.0 depends on torch<2\n"
            "    The user requested (constraint) torch==2.6\n\nTo fix this\n",
            "a 1.0 depends on torch<2; the worker has torch 2.6",
        ),
        (
            "Collecting old==1.0\n  Preparing metadata: finished with status 'error'\n"
            "  error: subprocess-exited-with-error\n  \n  × python setup.py egg_info did not run\n"
            "  │ exit code: 1\n  ╰─> [2 lines of output]\n      ValueError: no compiler\n"
            "      [end of output]\n  \n  note: This error originates from a subprocess\n",
            "old==1.0 cannot be built: ValueError: no compiler",
        ),
        (
            "ERROR: Cannot install\n\nThe conflict is caused by:\n"
            "    The user requested torch==1.0\n"
            "    The user requested (constraint) click<=2.14.1\n\nTo fix this\n",
            "asked for: torch==1.0; pip's own settings there (PIP_CONSTRAINT, pip.conf) say"
            " click<=2.14.1",
        ),
        (
            "Collecting six\nERROR: Exception:\nTraceback (most recent call last):\n"
            '  File "/x/pip/req.py", line 3, in parse\n    parse(text)\n'
            "pip._vendor.InvalidRequirement: Expected a marker\n    six; import os\n         ^\n",
            "pip._vendor.InvalidRequirement: Expected a marker",
        ),
        ("", "it said nothing"),
    ],
)
def test_pips_reason_in_one_line(said: str, reason: str) -> None:
    assert overlay.reason(said, {"torch": "2.6"}) == reason

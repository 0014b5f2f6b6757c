"""Several images on one host over one lease folder; one that is replaced while runs live there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from runner.app import runs, stack
from runner.errors import NotFound, ProvisionError
from tests.helpers.become import become
from tests.helpers.desk import Desk
from tests.helpers.wait import wait_for
from tests.rig.engine import RigEngine
from tests.rig.gpus import HOLD, FakeGpus
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.system.test_shared_gpus import JOB, check_journals

LIBRARY = "import cloudpickle, torch; print('cloudpickle', cloudpickle.__version__)\n"
TRAINS = """
model = torch.nn.Linear(4, 1)
loss = model(torch.ones(8, 4)).pow(2).mean(); loss.backward()
print('trained', float(loss) >= 0)
"""
WAITS = ("bash", "-c", "while [ ! -e /workspace/.go ]; do sleep 0.1; done; echo gone on")


@pytest.fixture
def desk(
    operator: Operator,
    jump_host: RigHost,
    docker: RigEngine,
    fake_gpus: FakeGpus,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Desk]:
    become(operator, monkeypatch)
    desk = Desk(operator, docker)
    desk.clear(jump_host)
    desk.make_other_base()
    yield desk
    desk.clear(jump_host)


def test_two_images_train_at_once_over_one_lease_folder(desk: Desk, fake_gpus: FakeGpus) -> None:
    (desk.operator.project / "job.py").write_text(LIBRARY + TRAINS + JOB)
    shutil.copy(HOLD, desk.operator.project)
    first = desk.provision()
    with pytest.raises(ProvisionError, match="no worker of image other there yet") as caught:
        desk.submit("image=cpu,other", "--", "true")
    assert caught.value.status == 4
    assert caught.value.advice == ("runner provision host=gpu1 image=other",)
    second = desk.provision(image="other")
    assert second.worker == first.worker and second.container != first.container
    assert desk.containers() == {first.container: "running", second.container: "running"}

    argv = ("python3", "job.py", "{each}", "0.2", "0.6")
    ids = desk.submit("image=cpu,other", "gpus=1", "each.each=a,b", "--", *argv)
    assert desk.outcomes(ids) == ["done"] * 4
    said = {"cpu": 0, "other": 0}
    for run in ids:
        status, log = desk.status(run).status, desk.log(run)
        assert "trained True" in log
        assert ("cloudpickle 0.0.1" in log) == (status.image == "other")
        said[str(status.image)] += 1
    assert said == {"cpu": 2, "other": 2}
    # no two were on one card, and both cards had some
    assert check_journals(fake_gpus) == {"a": 2, "b": 2}

    # whichever container is there, what a run was can be read; a submit wants its own
    taken = desk.down(image="cpu")
    assert taken.containers == (first.container,) and desk.containers() == {
        second.container: "running"
    }
    assert desk.status(ids[0]).status.outcome == "done" and "trained" in desk.log(ids[0])
    with pytest.raises(ProvisionError, match="there is no worker there yet") as caught:
        desk.submit("--", "true")
    assert caught.value.advice == ("runner provision host=gpu1",)
    with pytest.raises(NotFound):
        desk.status("cmd-00000")


def test_a_worker_that_is_replaced_drains(desk: Desk, jump_host: RigHost) -> None:
    go = jump_host.home / "runner" / ".go"
    made = desk.provision()
    (live,) = desk.submit("--", *WAITS)
    desk.until(live, "running")
    before = desk.pid_of(made.container, "while [")
    assert not desk.provision().changed  # nothing is other than it was
    assert desk.containers() == {made.container: "running"}

    desk.write(more="slots = 3\n")
    second = desk.provision()
    old = f"{made.container}-old-1"
    assert second.draining == (live,) and second.generation == 2
    assert "1 run goes on in the old container, which leaves when it has ended" in desk.heard.text
    assert desk.containers() == {made.container: "running", old: "running"}
    assert desk.inspect(old)["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert desk.pid_of(old, "while [") == before

    # what is new starts in the new one, what lives is seen from there
    (new,) = desk.submit("--", "bash", "-c", "cat /etc/runner/worker/worker.json")
    assert desk.outcomes([new]) == ["done"]
    assert json.loads(desk.log(new))["place"] == "cpu.2"
    assert desk.status(live).status.state == "running"
    found = stack.stack(desk.ctx, runs.RunRef(live, "gpu1"))
    assert "sleep" in found.ranks[0].text or "bash" in found.ranks[0].text

    # then it leaves by itself
    go.touch()
    assert desk.outcomes([live]) == ["done"] and desk.log(live) == "gone on\n"
    assert desk.status(live).status.attempt == 1
    desk.until_ended(old)
    desk.write()
    back = desk.provision()  # the settings of the first: no build, and what has ended is gone
    assert back.changed and "build" not in back.steps and back.generation == 3
    assert desk.containers() == {made.container: "running"}
    states = sorted(
        path.name for path in (jump_host.home / ".local/state/runner/workers").iterdir()
    )
    assert states[-1] == f"{made.container}.3" and f"{made.container}.1" not in states


def test_dockerd_dies_and_comes_back_with_and_without_live_restore(
    desk: Desk, docker: RigEngine, jump_host: RigHost
) -> None:
    docker.stop()
    docker.start(**{"live-restore": True})
    try:
        names = [desk.provision().container, desk.provision(image="other").container]
        ids = desk.submit("image=cpu,other", "--", *WAITS)
        for run in ids:
            desk.until(run, "running")
        before = [desk.pid_of(name, "while [") for name in names]

        docker.kill()
        docker.start(**{"live-restore": True})
        assert [desk.pid_of(name, "while [") for name in names] == before
        assert [desk.status(run).status.attempt for run in ids] == [1, 1]

        # without it the next dockerd ends the containers, and their policy brings them back
        docker.kill()
        docker.start()
        for run in ids:
            wait_for(lambda run=run: desk.status(run).status.attempt == 2, 90, f"{run} once more")
        (jump_host.home / "runner" / ".go").touch()
        assert desk.outcomes(ids) == ["done", "done"]
        assert desk.containers() == dict.fromkeys(names, "running")
        for run in ids:
            assert desk.status(run).status.attempt == 2
    finally:
        docker.remove_containers()
        docker.stop()
        docker.start()

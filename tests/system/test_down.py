"""`down` takes the workers away, and `down --purge` leaves the host as it was before `host add`."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.app import hosts
from runner.errors import Conflict, ProvisionError, SpecError
from tests.helpers.become import become
from tests.helpers.desk import Desk
from tests.rig.engine import RigEngine
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator


@pytest.fixture
def desk(
    operator: Operator, jump_host: RigHost, docker: RigEngine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    become(operator, monkeypatch)
    docker.reset()
    desk = Desk(operator, docker)
    desk.clear(jump_host)
    yield desk
    desk.clear(jump_host)


def whole(home: Path) -> dict[str, tuple[object, ...]]:
    """Every entry of a home: kind, mode, owner, and what is in it."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [home, *home.rglob("*")]:
        state = path.lstat()
        inside: object = None
        if path.is_symlink():
            inside = os.readlink(path)
        elif path.is_file():
            inside = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(home))] = (stat.filemode(state.st_mode), state.st_uid, inside)
    return found


def docker_has(docker: RigEngine) -> dict[str, list[str]]:
    """Containers, images, volumes and networks, each with its id."""
    words = {
        "containers": ("ps", "-aq", "--no-trunc"),
        "images": ("image", "ls", "-aq", "--no-trunc"),
        "volumes": ("volume", "ls", "-q"),
        "networks": ("network", "ls", "-q", "--no-trunc"),
        "builds": ("system", "df", "--format", "{{.Type}} {{.TotalCount}}"),
    }
    return {kind: sorted(docker.docker(*argv).stdout.split("\n")) for kind, argv in words.items()}


def test_after_a_purge_the_host_is_as_it_was_before_it_was_added(
    desk: Desk, docker: RigEngine, jump_host: RigHost
) -> None:
    home = jump_host.home
    (desk.operator.project / "hosts/gpu1.toml").unlink()
    desk.make_other_base()  # what was there before is not ours to take away
    before = whole(home), docker_has(docker)

    hosts.add(desk.ctx, "gpu1", "rig-gpu", None, None, None)
    desk.write()
    made = desk.provision()
    other = desk.provision(image="other")
    ids = desk.submit("--", "bash", "-c", "mkdir a; echo x > a/b; chmod -R a-w a; echo done")
    ids += desk.submit("image=other", "--", "true")
    assert desk.outcomes(ids) == ["done", "done"]

    with pytest.raises(SpecError, match="where nobody|takes away for good") as caught:
        desk.down(purge=True)
    assert ids[0] in caught.value.message and "~/runner" in caught.value.message
    with pytest.raises(Conflict, match="nothing was taken away"):
        desk.down(purge=True, ask=lambda question: "y")
    assert set(desk.containers()) == {made.container, other.container}
    questions: list[str] = []
    taken = desk.down(purge=True, ask=lambda question: questions.append(question) or "yes")
    assert "2 runs not pulled among it" in questions[0]
    assert set(taken.unpulled) == set(ids)
    assert set(taken.containers) == {made.container, other.container}
    assert (whole(home), docker_has(docker)) == before
    assert not desk.down(purge=True, yes=True).containers  # and once more: there is nothing
    assert (whole(home), docker_has(docker)) == before


def test_live_runs_are_not_taken_away_and_others_are_left_alone(
    desk: Desk, docker: RigEngine, jump_host: RigHost
) -> None:
    base = docker.base_image
    docker.docker("run", "-d", "--name", "theirs", base, "sleep", "600")
    desk.write("third", 'ssh = "rig-gpu"\nworkspace = "~/third"\n')
    third, made = desk.provision("third"), desk.provision()
    live, queued = (
        *desk.submit("--", "bash", "-c", "trap 'sleep 2; exit' TERM; sleep 600 & wait"),
        *desk.submit("after=latest", "--", "true"),
    )
    desk.until(live, "running")
    for purge in (False, True):
        with pytest.raises(Conflict, match=rf"1 run lives there \({live}\)") as caught:
            desk.down(purge=purge, yes=True)
        assert caught.value.status == 7 and made.container in desk.containers()
    desk.cancel(live)

    # without a purge all that lasts is there for the next one
    assert desk.down().containers == (made.container,)
    again = desk.provision()
    assert again.worker == made.worker and again.generation > made.generation
    assert desk.outcomes([queued]) == ["skipped"]
    assert desk.status(live).status.outcome == "cancelled"

    # gone, half made, and with an engine that was away meanwhile
    docker.docker("rm", "-f", again.container)
    docker.docker("create", "--name", again.container, *labels_of(third.container, docker), base)
    docker.stop()
    with pytest.raises(ProvisionError, match="Docker does not answer there; nothing was taken"):
        desk.down(purge=True, yes=True)
    docker.start()
    taken = desk.down(purge=True, yes=True)
    assert taken.containers == (again.container,) and taken.kept
    assert not (jump_host.home / "runner").exists()

    # the other workspace's worker, and what is not the runner's at all, never noticed
    docker.docker("start", "theirs")
    assert desk.containers() == {third.container: "running", "theirs": "running"}
    assert desk.outcomes(desk.submit("--", "true", host="third"), host="third") == ["done"]
    desk.down("third", purge=True, yes=True)
    assert not (jump_host.home / ".local").exists() and desk.containers() == {"theirs": "running"}


def labels_of(container: str, docker: RigEngine) -> list[str]:
    """`--label` words that make a container one of this account's workers."""
    shown = docker.docker("inspect", "-f", "{{json .Config.Labels}}", container).stdout
    assert "org.runner.worker" in shown
    return ["--label", "org.runner.worker=w-0123456789ab", "--label", "org.runner.image=cpu"]

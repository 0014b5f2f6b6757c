from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner import inventory
from runner.errors import NotFound, SpecError
from runner.model import Host, ImagePin, Limits, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "agents").mkdir()
    return inventory.find_project(tmp_path)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_nearest_folder_upward_is_the_project(tmp_path: Path) -> None:
    write(tmp_path / "runner.toml", 'name = "outer"\nid = "p-1"\n')
    (tmp_path / "a" / "hosts").mkdir(parents=True)
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    assert inventory.find_project(inner).root == tmp_path / "a"
    outer = inventory.find_project(tmp_path)
    assert (outer.name, outer.id, outer.root) == ("outer", "p-1", tmp_path)


def test_without_a_project_file_the_path_is_the_id(tmp_path: Path) -> None:
    folders = [tmp_path / "one" / "hosts", tmp_path / "zwei ü" / "hosts"]
    for folder in folders:
        folder.mkdir(parents=True)
    first, second = (inventory.find_project(folder.parent) for folder in folders)
    assert first.id != second.id
    assert first.id == inventory.find_project(folders[0]).id
    assert (first.name, second.name) == ("one", "zwei--")


def test_no_project_names_the_way_out() -> None:
    with pytest.raises(SpecError) as caught:
        inventory.find_project(Path("/proc/self"))  # whatever is above the temporary folder
    assert caught.value.advice == ("runner init",)


def test_a_wrong_project_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "runner.toml", 'name = "a b"\nidd = "x"\n')
    with pytest.raises(SpecError) as caught:
        inventory.find_project(tmp_path)
    assert caught.value.message == "runner.toml:"
    assert "idd is not known here (did you mean 'id'?)" in caught.value.advice


def test_local_is_always_there(project: Project) -> None:
    assert inventory.read_hosts(project) == {"local": Host("local", runtime="local")}


def test_local_may_be_changed_but_not_moved(project: Project) -> None:
    path = write(project.root / "hosts/local.toml", 'slots = 2\ngpus = [1, 0]\n[env]\nA = "b"\n')
    local = inventory.read_hosts(project)["local"]
    assert (local.slots, local.gpus, local.env, local.runtime) == (2, (0, 1), {"A": "b"}, "local")
    assert local.source == path
    write(path, 'workspace = "/x"\nssh = "y"\n')
    with pytest.raises(SpecError) as caught:
        inventory.read_hosts(project)
    assert caught.value.advice == (
        "workspace of local is moved by the variable RUNNER_WORKSPACE",
        "ssh is not known here",
    )


def test_a_whole_host_file(project: Project) -> None:
    write(
        project.root / "hosts/gpu1.toml",
        """
ssh = "ssh://drl@10.20.0.7:2222"
jump = "login.lab"
jump_key = "ssh-ed25519 AAAAC3Nza"
host_key = "ssh-ed25519 AAAAC3Nz+/=="
runtime = "docker"
image = "torch-2.6"
workspace = "/data/run ner"
gpus = [0, 1]
slots = 4
transport = "openssh"
network = "none"
[limits]
shm = "1g"
memory = "64g"
[data]
atari = "/data/atari"
[env]
HTTP_PROXY = "http://proxy:3128"
""",
    )
    host = inventory.read_hosts(project)["gpu1"]
    assert host.ssh == "ssh://drl@10.20.0.7:2222"
    assert (host.jump, host.host_key) == ("login.lab", "ssh-ed25519 AAAAC3Nz+/==")
    assert (host.gpus, host.slots, host.transport) == ((0, 1), 4, "openssh")
    assert host.limits == Limits(shm_bytes=10**9, memory_bytes=64 * 10**9)
    assert (host.network, host.data) == ("none", {"atari": "/data/atari"})
    assert "proxy" not in repr(host)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('ssh = "-oProxyCommand=touch x"', "ssh is '-oProxyCommand=touch x'"),
        ('ssh = "a b"', "ssh is 'a b'"),
        ('jump = "-J"', "jump is '-J'"),
        ('host_key = "AAAA"', "host_key is 'AAAA'; it must be as in 'ssh-ed25519 AAAA…'"),
        ('runtime = "slurm"', "runtime is 'slurm', which is not in this version yet"),
        ('network = "lan"', "network is 'lan'; it must be one of full, none, host"),
        ('python = "/opt/conda/bin/python3"', 'python is for runtime = "venv"'),
        ('runtime = "local"', "runtime is 'local'; it must be one of docker"),
        ('workspace = "/"', "workspace is '/'; it must be a folder of its own"),
        ('workspace = "~"', "workspace is '~'"),
        ('workspace = "~/a/.."', "workspace is '~/a/..'"),
        ('workspace = "runner"', "workspace is 'runner'"),
        ('workspace = "/a:/b"', "workspace is '/a:/b'"),
        ("gpus = 4", "gpus is 4; it must be 'all', 'none' or a list such as [0, 1]"),
        ("gpus = [true]", "gpus is [True]"),
        ("gpus = []", "gpus is []"),
        ("slots = 0", "slots is 0; it must be at least 1"),
        ('transport = "fabrik"', "(did you mean 'fabric'?)"),
        ("disk_reserve = 10", "disk_reserve is 10; it must be a size such as '8g'"),
        ('[data]\natari = "data"', "data.atari is 'data'; it must be a folder as '/data/atari'"),
        ('[data]\natari = "/a,b"', "data.atari is '/a,b'; it may hold no comma, quote or '..'"),
        ('[data]\natari = "/run"', "data.atari is '/run'; the Docker socket would be seen"),
        ('[data]\n"a/b" = "/x"', "data.'a/b' is no name for data"),
        ('[limits]\nshm = "8"', "limits.shm is '8'; a bare number has no unit"),
        ('[env]\n"A B" = "x"', "env.'A B' is no name for an environment variable"),
        ("[env]\nTOKEN = 5", "env.TOKEN must be a text"),
        ('[env]\nRUNNER_X = "x"', "env.RUNNER_X is set by the runner itself"),
        ('image = "a/b"', "image is 'a/b'"),
        ('worksapce = "x"', "worksapce is not known here (did you mean 'workspace'?)"),
        ("gpus = ", "not TOML"),
    ],
)
def test_a_wrong_host_file_is_refused_with_the_place(
    project: Project, line: str, says: str
) -> None:
    ssh = "" if line.startswith("ssh") else 'ssh = "gpu1"\n'
    write(project.root / "hosts/gpu1.toml", ssh + line + "\n")
    with pytest.raises(SpecError) as caught:
        inventory.read_hosts(project)
    assert caught.value.message.startswith("hosts/gpu1.toml: ")
    assert says in caught.value.message


def test_problems_of_all_host_files_are_told(project: Project) -> None:
    write(project.root / "hosts/a.toml", "slots = 0\ngpus = 4\n")
    write(project.root / "hosts/b c.toml", 'ssh = "b"\n')
    with pytest.raises(SpecError) as caught:
        inventory.read_hosts(project)
    lines = [caught.value.message, *caught.value.advice]
    assert lines[0] == "hosts/a.toml:"
    assert any("slots is 0" in line for line in lines)
    assert any(line.startswith("hosts/b c.toml: 'b c' is not a host's name") for line in lines)


def test_a_file_that_is_no_utf8_is_named(project: Project) -> None:
    (project.root / "hosts/gpu1.toml").write_bytes(b"ssh = '\xff'\n")
    with pytest.raises(SpecError, match=r"hosts/gpu1.toml: not UTF-8 at byte 7"):
        inventory.read_hosts(project)


def test_an_unknown_host_is_not_found_with_the_near_name() -> None:
    hosts = {"local": Host("local"), "gpu1": Host("gpu1")}
    with pytest.raises(NotFound, match=r"gpu2 is no host here \(did you mean gpu1\?\)") as caught:
        inventory.find_host(hosts, "gpu2")
    assert caught.value.status == 6


PIN = """
["torch-2.6"]
base = "python@sha256:00"
torch = "2.6.0"
cuda = "12.4"
driver_min = "525.60"
capabilities = ["7.0"]
pip = ["torch==2.6.0"]
"""


def test_the_shipped_pins_are_readable(project: Project) -> None:
    pins = inventory.read_images(project)
    assert Host.image in pins
    assert all(pin.base for pin in pins.values())


def test_own_pins_stand_beside_the_shipped_ones(project: Project) -> None:
    write(project.root / "images.toml", PIN.replace("torch-2.6", "mine"))
    pins = inventory.read_images(project)
    assert pins["mine"].base == "python@sha256:00"
    assert pins["mine"].capabilities == ("7.0",)
    assert "torch-2.6" in pins


def test_a_wrong_pin_is_refused(project: Project) -> None:
    write(project.root / "images.toml", '[mine]\nbase = "--privileged"\ntorch = "2"\n')
    with pytest.raises(SpecError) as caught:
        inventory.read_images(project)
    lines = "\n".join([caught.value.message, *caught.value.advice])
    assert lines.startswith("images.toml:")
    assert "mine.base is '--privileged'" in lines
    assert "mine.driver_min is missing" in lines


def test_an_unknown_image_is_refused_with_the_near_name() -> None:
    pins = {"torch-2.6": ImagePin("torch-2.6", "b", "2.6", "12", "525", ())}
    with pytest.raises(SpecError, match=r"torch2.6 is no image pin \(did you mean torch-2.6\?\)"):
        inventory.find_image(pins, "torch2.6")


def test_jobs_are_the_files_in_agents(project: Project) -> None:
    write(project.root / "agents/dqn.toml", 'entry = "dqn.py"\n[params]\nlr = 1e-3\n')
    write(project.root / "agents/dqn.py", "")
    write(project.root / "agents/ppo.toml", 'command = ["python", "x.py"]\n')
    assert [job.name for job in inventory.read_jobs(project)] == ["dqn", "ppo"]
    assert inventory.read_job(project, "dqn").params == {"lr": 1e-3}


def test_an_unknown_job_is_refused_with_the_near_name(project: Project) -> None:
    with pytest.raises(SpecError) as caught:
        inventory.read_job(project, "../hosts/x")
    assert "runner init" in caught.value.advice[0]
    write(project.root / "agents/dqn.toml", 'command = ["true"]\n')
    with pytest.raises(SpecError, match=r"dqm is no job of this project \(did you mean dqn\?\)"):
        inventory.read_job(project, "dqm")


def test_an_entry_that_is_not_there_is_refused(project: Project) -> None:
    write(project.root / "agents/dqn.toml", 'entry = "dqn.py"\n')
    with pytest.raises(SpecError, match="entry is 'dqn.py'; there is no such file beside it"):
        inventory.read_job(project, "dqn")


def test_one_bad_job_does_not_block_another(project: Project) -> None:
    write(project.root / "agents/bad.toml", "[program:x\n")
    write(project.root / "agents/good.toml", 'command = ["true"]\n')
    assert inventory.read_job(project, "good").command == ("true",)
    with pytest.raises(SpecError, match=r"agents/bad.toml: not TOML"):
        inventory.read_jobs(project)


def test_how_much_code_may_travel_is_the_projects_to_say(tmp_path: Path) -> None:
    write(tmp_path / "runner.toml", "")
    assert inventory.find_project(tmp_path).code_limit_bytes == 500_000_000
    write(tmp_path / "runner.toml", 'code_limit = "2g"\n')
    assert inventory.find_project(tmp_path).code_limit_bytes == 2_000_000_000


@pytest.mark.parametrize("value", ["2", '"2"', '"0m"', '"-1g"', "true"])
def test_wrong_code_limit_is_refused(tmp_path: Path, value: str) -> None:
    write(tmp_path / "runner.toml", f"code_limit = {value}\n")
    with pytest.raises(SpecError) as caught:
        inventory.find_project(tmp_path)
    assert caught.value.message.startswith("runner.toml: code_limit is ")


@pytest.mark.parametrize("name", ["runner.toml", "hosts/gpu1.toml", "agents/dqn.toml"])
def test_a_file_that_is_a_fifo_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    for folder in ("hosts", "agents"):
        (tmp_path / folder).mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(SpecError, match=f"^{name}: not a regular file"):
        project = inventory.find_project(tmp_path)
        inventory.read_hosts(project)
        inventory.read_jobs(project)

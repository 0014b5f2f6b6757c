"""A pinned key is written into a host's file, and everything else of it stays as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.errors import SpecError
from runner.pins import with_pin, write_pin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OLD, NEW = "ssh-ed25519 AAAAold me@x", "ssh-ed25519 AAAAnew"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f'ssh = "x"\nhost_key = "{OLD}"\n', f'ssh = "x"\nhost_key = "{NEW}"\n'),
        (
            f'# mine\n\n  "host_key"\t=  \'{OLD}\'  # since May\r\nssh="x"',
            f'# mine\n\n  "host_key"\t=  "{NEW}"  # since May\r\nssh="x"',
        ),
        (
            f'x = """\nhost_key = "{OLD}"\n"""\nhost_key = "{OLD}"\n[env]\nhost_key = "{OLD}"\n',
            f'x = """\nhost_key = "{OLD}"\n"""\nhost_key = "{NEW}"\n[env]\nhost_key = "{OLD}"\n',
        ),
        (f'#host_key = "{OLD}"\nhost_key = "{OLD}"', f'#host_key = "{OLD}"\nhost_key = "{NEW}"'),
        ('ssh = "x"\ngpus = 1\n', f'ssh = "x"\nhost_key = "{NEW}"\ngpus = 1\n'),
        ('ssh = "x"\r\njump = "j"', f'ssh = "x"\r\njump = "j"\r\nhost_key = "{NEW}"\r\n'),
        ('[env]\nssh = "x"\n', f'host_key = "{NEW}"\n[env]\nssh = "x"\n'),
        (f'host_key = "{NEW}"  \n', f'host_key = "{NEW}"  \n'),
    ],
)
def test_only_the_key_changes(before: str, after: str) -> None:
    assert with_pin(before, "host_key", NEW) == after


def test_a_key_written_in_a_way_we_do_not_change_is_left() -> None:
    assert with_pin(f'host_key = """{OLD}"""\n', "host_key", NEW) is None


def test_the_file_is_replaced_at_once_with_its_mode_and_where_a_link_points(tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_bytes(f"# é\r\nhost_key = '{OLD}'\r\n".encode())
    real.chmod(0o640)
    link = tmp_path / "gpu1.toml"
    link.symlink_to(real)
    write_pin(link, "host_key", NEW)
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert real.read_bytes() == f'# é\r\nhost_key = "{NEW}"\r\n'.encode()
    write_pin(link, "jump_key", OLD)
    assert tomllib.loads(real.read_text()) == {"host_key": NEW, "jump_key": OLD}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu1.toml", "real.toml"]


def test_what_cannot_be_changed_says_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "gpu1.toml"
    path.write_text(f'host_key = """{OLD}"""\n')
    before = path.read_bytes()
    with pytest.raises(SpecError, match=r"hosts/gpu1\.toml") as caught:
        write_pin(path, "host_key", NEW)
    assert f'  host_key = "{NEW}"' in caught.value.advice and path.read_bytes() == before

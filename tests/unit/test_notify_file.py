"""The operator's notify.toml: what it may say, every mistake at once, and who may read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import notify_file
from runner.errors import SpecError

URL = "https://hooks.example.com/services/T00/B11/s3cr3t"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = tmp_path / "config/runner"
    found.mkdir(parents=True)
    return found


def write(folder: Path, text: str, mode: int = 0o600, name: str = "notify.toml") -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)


def problem(folder: Path, text: str, mode: int = 0o600) -> str:
    write(folder, text, mode)
    with pytest.raises(SpecError) as caught:
        notify_file.read_settings()
    told = "\n".join([caught.value.message, *caught.value.advice])
    assert told.startswith(str(folder / "notify.toml"))
    return told


def test_without_a_file_there_is_nothing(folder: Path) -> None:
    assert notify_file.read_settings() is None
    folder.rmdir()
    assert notify_file.read_settings() is None


def test_it_is_found_in_the_home_without_xdg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert notify_file.path_of() == tmp_path / ".config/runner/notify.toml"


def test_all_of_it_is_read_and_files_are_named_from_its_folder(folder: Path) -> None:
    write(folder, URL + "\n", name="hook")
    write(folder, "tk_12345", name="token")
    write(
        folder,
        """
        on = ["failed", "stuck"]
        [webhook]
        url_file = "hook"
        format = "slack"
        [webhook.headers]
        Authorization = { file = "token" }
        X-Title = "runner"
        [command]
        argv = ["/bin/tell", "me and you"]
        [heartbeat]
        url = "https://hc-ping.com/key/{name}?create=1"
        every = "5m"
        """,
    )
    found = notify_file.read_settings("Europe/Berlin")
    assert found is not None
    assert found.body == {
        "on": ["failed", "stuck"],
        "zone": "Europe/Berlin",
        "webhook": {
            "url": URL,
            "format": "slack",
            "headers": {"Authorization": "tk_12345", "X-Title": "runner"},
        },
        "command": {"argv": ["/bin/tell", "me and you"]},
        "heartbeat": {"url": "https://hc-ping.com/key/{name}?create=1", "every_s": 300.0},
    }
    assert "s3cr3t" not in repr(found)


def test_without_on_all_but_single_failures_is_meant(folder: Path) -> None:
    write(folder, f'[webhook]\nurl = "{URL}"')
    found = notify_file.read_settings()
    assert found is not None
    assert found.body["on"] == ["ended", "stuck", "missed", "disk"]
    assert found.body["webhook"] == {"url": URL, "format": "json", "headers": {}}
    assert found.body["command"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "webhook is missing, as are command and heartbeat"),
        ("on = [", "not TOML"),
        ('[webhok]\nurl = "x"', "webhok is not known here"),
        ('on = ["end"]\n[command]\nargv = ["x"]', "on has 'end'; there are ended, failed"),
        ('on = "ended"\n[command]\nargv = ["x"]', "on is 'ended'; it must be a list of texts"),
        ("[webhook]", "webhook.url is missing; so is url_file"),
        ("webhook = 3", "webhook is 3; it must be a table"),
        ("[webhook]\nurl = 3", "webhook.url must be a text"),
        (f'[webhook]\nurl = "{URL}"\nurl_file = "x"', "webhook.url is given twice"),
        ('[webhook]\nurl = "ftp://x/s3cr3t"', "webhook.url must begin with https://"),
        ('[webhook]\nurl = "https:///s3cr3t"', "webhook.url names no host"),
        ('[webhook]\nurl = "https://x:y/s3cr3t"', "webhook.url is no address"),
        ('[webhook]\nurl = "https://me:s3cr3t@x/"', "has a user or password in it"),
        ('[webhook]\nurl = "https://x/s3cr3t\\n"', "webhook.url is no address"),
        (f'[webhook]\nurl = "{URL}"\nformat = "slak"', "did you mean 'slack'?"),
        ('[webhook]\nurl_file = "gone"', "gone: No such file or directory"),
        ('[webhook]\nurl_file = "."', ": Is a directory"),
        ('[webhook]\nurl_file = "~nouser/x"', "'~nouser/x', which is no file's name"),
        ('[webhook]\nurl_file = "a\\u0000b"', "which is no file's name"),
        ('[webhook]\nurl_file = "empty"', "which is empty"),
        ('[webhook]\nurl_file = "open"', "others may read it (mode 0644)"),
        (f'[webhook]\nurl = "{URL}"\nheaders = 3', "webhook.headers is 3; it must be a table"),
        (f'[webhook]\nurl = "{URL}"\nheaders = {{ "a b" = "x" }}', "cannot be a header's name"),
        (f'[webhook]\nurl = "{URL}"\nheaders = {{ Host = "x" }}', "Host is set by the runner"),
        (f'[webhook]\nurl = "{URL}"\nheaders = {{ A = "s3cr3t\\n" }}', "that no header can have"),
        (f'[webhook]\nurl = "{URL}"\nheaders = {{ A = 3 }}', 'must be a text, or { file = "…" }'),
        ("[command]", "command.argv is missing"),
        ('[command]\nargv = "tell me"', "command.argv is 'tell me'; it must be a list of texts"),
        ("[command]\nargv = []", "it must be a list that begins with a program"),
        (f'[heartbeat]\nurl = "{URL}"\nevery = "5"', "a bare number has no unit"),
        (f'[heartbeat]\nurl = "{URL}"\nevery = "10s"', "heartbeat.every must be between 1m and 1d"),
        ("[heartbeat]\nevery = '5m'", "heartbeat.url is missing"),
    ],
)
def test_each_mistake_is_told_with_its_place_and_without_the_secret(
    folder: Path, text: str, said: str
) -> None:
    write(folder, "", name="empty")
    write(folder, URL, 0o644, name="open")
    told = problem(folder, text)
    assert said in told
    assert "s3cr3t" not in told


def test_every_mistake_is_told_at_once(folder: Path) -> None:
    told = problem(folder, 'on = ["x"]\n[webhook]\nformat = "y"\n[command]\nargv = []')
    assert len(told.splitlines()) == 5


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_that_others_may_read_is_refused_with_the_way_out(folder: Path, mode: int) -> None:
    told = problem(folder, f'[webhook]\nurl = "{URL}"', mode)
    assert "and it holds a secret" in told
    assert f"chmod 600 {folder / 'notify.toml'}" in told


def test_what_holds_no_secret_may_be_read_but_not_written_by_others(folder: Path) -> None:
    text = '[command]\nargv = ["/bin/tell"]'
    write(folder, text, 0o644)
    assert notify_file.read_settings() is not None
    assert "others may write it (mode 0664)" in problem(folder, text, 0o664)


def test_the_account_has_one_random_name_and_only_when_it_needs_one(folder: Path) -> None:
    assert notify_file.client_name(make=False) is None
    name = notify_file.client_name(make=True)
    assert name is not None
    assert name == notify_file.client_name(make=True) == notify_file.client_name(make=False)
    assert notify_file.client_file().stat().st_mode & 0o777 == 0o600
    notify_file.client_file().write_text("../../x\n")
    assert notify_file.client_name(make=False) is None
    assert notify_file.client_name(make=True) != name

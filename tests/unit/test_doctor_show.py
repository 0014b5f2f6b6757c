"""How doctor's findings look: faults first, each with its way out, what is well on a few lines."""

from __future__ import annotations

import json

from runner.doctor.findings import HostHealth, fault, note, ok, skipped
from runner.show.doctor import MOST_OK, document, header, lines
from runner.show.screen import Paint, width

DRIVER = fault(
    "driver",
    "driver",
    "470.82; image torch-2.6 needs 525.60 or newer",
    "use CUDA 11.8:",
    "  runner provision host=gpu1 image=torch-2.6-cu118",
)
DISK = fault(
    "disk",
    "disk",
    "~/runner: 3.1 GB free of 938 GB, image and a run need 14 GB",
    "  runner gc host=gpu1 --dry-run",
)
ROOT = note("docker-root", "docker", "drl may use Docker: whoever holds this key is root on gpu1")
FINE = [ok(f"k{number}", "ssh", f"thing {number}") for number in range(30)]


def health(*checks: object, contact: str = "ok") -> HostHealth:
    return HostHealth("gpu1", contact, "drl@10.20.0.7 through login.lab", 0.93, tuple(checks))  # type: ignore[arg-type]


def test_faults_with_their_way_out_then_notes_then_what_is_well() -> None:
    shown = lines(health(DRIVER, DISK, ROOT, *FINE), everything=False, columns=80)
    assert shown == [
        "FAULT  driver  470.82; image torch-2.6 needs 525.60 or newer. Use CUDA 11.8:",
        "                 runner provision host=gpu1 image=torch-2.6-cu118",
        "FAULT  disk    ~/runner: 3.1 GB free of 938 GB, image and a run need 14 GB",
        "                 runner gc host=gpu1 --dry-run",
        "note   docker  drl may use Docker: whoever holds this key is root on gpu1",
        "ok     thing 0, thing 1, thing 2, thing 3, thing 4, thing 5, thing 6, thing 7,",
        "       thing 8, thing 9, thing 10, thing 11, and 18 more (--all)",
        "2 faults: a run would not start",
    ]
    assert header(health(DRIVER)) == "gpu1  drl@10.20.0.7 through login.lab, 0.9s, 1 check"


def test_what_does_not_fit_goes_on_below_and_a_command_stays_whole() -> None:
    shown = lines(health(DRIVER), everything=False, columns=42)
    assert shown[:3] == [
        "FAULT  driver  470.82; image torch-2.6",
        "               needs 525.60 or newer. Use",
        "               CUDA 11.8:",
    ]
    assert "                 runner provision host=gpu1 image=torch-2.6-cu118" in shown
    piped = lines(health(DRIVER), everything=False)
    assert piped[0].endswith("needs 525.60 or newer. Use CUDA 11.8:")


def test_with_all_each_check_has_its_line() -> None:
    checks = (DRIVER, *FINE, skipped("torch", "torch", "GPU 0: in use"))
    shown = lines(health(*checks), everything=True)
    assert sum(line.startswith("ok ") for line in shown) == len(FINE)
    assert "skip   torch   GPU 0: in use" in shown
    assert not [line for line in shown if "more (--all)" in line]


def test_nothing_but_what_is_well() -> None:
    shown = lines(health(*FINE[:MOST_OK]), everything=False)
    assert len(shown) <= 2 and not [line for line in shown if "more" in line or "fault" in line]
    assert lines(health(DISK), everything=False)[-1] == "1 fault: a run would not start"


def test_what_a_host_said_plays_no_tricks() -> None:
    evil = note("shell-noise", "shell", "x prints: \x1b[2J\u202e\r\nFAULT", "\x1b]0;t\x07")
    for everything in (True, False):
        for columns in (None, 40):
            text = "\n".join(lines(health(evil), everything=everything, columns=columns))
            assert "\x1b" not in text and "\u202e" not in text and "\r" not in text
    fine = ok("gpus", "gpus", "2 GPUs (\x1b[31mA10)")
    assert "\x1b" not in "".join(lines(health(fine), everything=False))


def test_long_words_of_a_host_do_not_break_the_lines() -> None:
    one = note("shell-noise", "shell", "x" * 300 + " " + "漢字 " * 40)
    for line in lines(health(one), everything=False, columns=60):
        assert width(line) <= 60 or "x" * 300 in line


def test_colour_supports_the_words() -> None:
    plain = lines(health(DRIVER, ROOT), everything=False)
    painted = lines(health(DRIVER, ROOT), everything=False, paint=Paint(True))
    assert "\x1b[31mFAULT" in painted[0]
    assert [line.replace("\x1b[31m", "").replace("\x1b[33m", "").replace("\x1b[0m", "")
            for line in painted] == plain  # fmt: skip


def test_the_document_has_every_check() -> None:
    body = json.loads(json.dumps(document([health(DRIVER, ROOT, *FINE, contact="ok")])))
    assert body["format"] == 1
    (host,) = body["hosts"]
    assert host["name"] == "gpu1" and host["contact"]["state"] == "ok"
    assert host["checks"][0] == {
        "id": "driver",
        "topic": "driver",
        "state": "fault",
        "text": "470.82; image torch-2.6 needs 525.60 or newer",
        "fix": ["use CUDA 11.8:", "  runner provision host=gpu1 image=torch-2.6-cu118"],
    }
    assert len(host["checks"]) == 2 + len(FINE)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import evidence
import pytest
from paths import RunPaths, Workspace

from tests.helpers.small_disk import small_disk, use_up_inodes

PLAIN = """\
starting
Traceback (most recent call last):
  File "/w/code/train.py", line 9, in <module>
    main()
    ~~~~^^
  File "/w/code/model.py", line 3, in forward
    raise ValueError("bad shape\\nof two lines")
ValueError: bad shape
of two lines
done with it
"""
PREFIXED = "".join(f"[rank0]: {line}\n" for line in PLAIN.splitlines()[1:])
CHAINED = (
    PLAIN.replace("ValueError", "KeyError")
    + "\nDuring handling of the above exception, another exception occurred:\n\n"
    + PLAIN
)


@pytest.mark.parametrize("text", [PLAIN, PREFIXED, CHAINED, PLAIN[30:] + PLAIN])
def test_the_last_traceback_in_two_lines(text: str) -> None:
    assert evidence.last_traceback(text) == (
        'File "/w/code/model.py", line 3, in forward\nValueError: bad shape'
    )


@pytest.mark.parametrize(
    "text",
    ["", "ValueError: x", "Traceback (most recent call last):\n", PLAIN[:120], "  File nothing"],
)
def test_half_a_traceback_is_none(text: str) -> None:
    assert evidence.last_traceback(text) is None


def test_a_bare_exception_counts() -> None:
    two = 'File "a.py", line 1, in <module>\nKeyboardInterrupt'
    assert evidence.last_traceback(f"Traceback (most recent call last):\n  {two}\n") == two


def test_what_goes_into_a_record_has_an_end() -> None:
    head = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nE: '
    found = evidence.last_traceback(head + "ü" * 100_000)
    assert found is not None
    assert found.startswith('File "a.py", line 1, in f\nE: ü')
    assert len(json.dumps(found)) <= evidence.TRACEBACK_BYTES
    line = evidence.cuda_oom("CUDA out of memory. " + "x" * 9000)
    assert line is not None
    assert line.startswith("CUDA out of memory. x")
    assert len(line) <= evidence.TEXT_BYTES


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "a\n  torch.OutOfMemoryError: Tried to allocate 2 GiB\nb",
            "torch.OutOfMemoryError: Tried",
        ),
        ("RuntimeError: CUDA out of memory. Tried\n", "RuntimeError: CUDA out of memory. Tried"),
        ("out of memory", None),
        ("", None),
    ],
)
def test_a_card_without_memory_is_seen_in_the_log(text: str, line: str | None) -> None:
    found = evidence.cuda_oom(text)
    assert found is None if line is None else str(found).startswith(line)


@pytest.mark.parametrize(
    ("report", "front", "end"),
    [
        ({"0": {"code": 0, "t": 1}, "1": {"code": 0, "t": 2}}, 0, (0, 0)),
        ({"0": {"code": -15, "t": 2}, "1": {"code": 5, "t": 1}}, 5, (5, 1)),
        (None, -9, (-9, None)),
        (None, 1, (None, None)),
        (None, None, (None, None)),
        ({}, 0, (0, 0)),
    ],
)
def test_the_first_rank_that_failed(report: Any, front: int | None, end: Any) -> None:
    assert evidence.first_end(report, front) == end


def test_exit_facts() -> None:
    assert evidence.exit_facts(None, None) == {"code": None, "signal": None, "rank": None}
    assert evidence.exit_facts(-9, 1) == {"code": None, "signal": 9, "rank": 1}
    assert evidence.exit_facts(3, 0) == {"code": 3, "signal": None, "rank": 0}


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    workspace = Workspace(str(tmp_path))
    workspace.make()
    paths = workspace.run("r-1")
    Path(paths.logs).mkdir(parents=True)
    return paths


def add(path: str, *lines: object) -> None:
    with open(path, "a") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def test_only_what_this_attempt_wrote_counts(run: RunPaths) -> None:
    add(run.progress(0), {"step": 500}, {"fault": "nan", "step": 500})
    add(run.log(0), "CUDA out of memory")
    marks = evidence.Marks(run, 2)
    assert (marks.step(), marks.fault(), marks.log_tail(0)) == (None, None, "")
    add(run.progress(0), {"step": 7}, {"step": "x"}, "{torn")
    add(run.progress(1), {"fault": "cuda-oom", "text": "t"})
    add(run.log(0), "new")
    assert marks.step() == 7
    fault = marks.fault()
    assert fault is not None
    assert fault["fault"] == "cuda-oom"
    assert marks.log_tail(0) == "new\n"
    assert marks.log_tail(1) == marks.log_tail(5) == marks.log_tail(None) == ""


def test_of_a_long_log_only_the_end_is_read(run: RunPaths) -> None:
    marks = evidence.Marks(run, 1)
    add(run.log(0), "x" * 200_000 + "end")
    text = marks.log_tail(0)
    assert len(text) == evidence.LOG_TAIL_BYTES
    assert text.endswith("end\n")


def test_the_last_words_of_the_front(tmp_path: Path) -> None:
    (tmp_path / "front.log").write_text("a\nlast word\n\n")
    assert evidence.front_text(str(tmp_path / "front.log")) == "last word"
    assert evidence.front_text(str(tmp_path / "none")) == ""


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "tool").touch()
    assert evidence.absent_program(["./tool"], str(tmp_path), "/bin") is None
    assert evidence.absent_program(["./toll"], str(tmp_path), "/bin") == "./toll"
    assert evidence.absent_program(["sh"], str(tmp_path), "/bin") is None
    assert evidence.absent_program(["shh"], str(tmp_path), "/bin") == "shh"


def test_counters_can_be_read(tmp_path: Path) -> None:
    assert evidence.count_oom_kills() >= 0
    assert evidence.disk_free(str(tmp_path)) > 0


def test_a_disk_without_inodes_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "few", "1m", inodes=40):
        assert evidence.disk_free(str(tmp_path / "few")) > 900_000
        use_up_inodes(tmp_path / "few")
        assert evidence.disk_free(str(tmp_path / "few")) == 0

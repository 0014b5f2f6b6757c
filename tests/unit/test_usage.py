from __future__ import annotations

import click

from runner import usage
from runner.cli import commands


def test_what_comes_later_is_not_there_yet() -> None:
    now = set(commands.commands)
    assert not now & set(usage.LATER_COMMANDS)


def test_complaints_of_click_become_one_line() -> None:
    error = usage.usage_error(click.UsageError("Got an odd\nthing."))
    assert error.message == "got an odd thing"
    assert error.advice == ("runner --help",)

"""A submit killed at any moment makes one run in the end, and words typed anew a second one."""

from __future__ import annotations

import random

import pytest

from tests.helpers.killed_submit import time_of_one, try_once
from tests.helpers.local_worker import LocalWorker


def check(worker: LocalWorker, trials: int, seed: int) -> None:
    time_of_one(worker.project)
    whole = time_of_one(worker.project)
    draw = random.Random(seed)
    moments = [draw.uniform(0.3, 1.1) * whole for _ in range(trials)]
    for number, after_s in enumerate(moments):
        trial = try_once(worker.project, worker.workspace, f"word-{number}", after_s)
        assert trial.is_right, trial


def test_a_submit_that_is_killed_makes_one_run(local_worker: LocalWorker) -> None:
    check(local_worker, 3, seed=1)


@pytest.mark.slow
def test_many_submits_that_are_killed_make_one_run_each(local_worker: LocalWorker) -> None:
    check(local_worker, 20, seed=2)

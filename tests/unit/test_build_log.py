"""What a build's lines say: both builders."""

from __future__ import annotations

import pytest

from runner.build_log import BuildLog

LEGACY = """
0.0 Sending build context to Docker daemon  12kB
0.1 Step 1/7 : ARG BASE_IMAGE=x
0.1 Step 2/7 : FROM ${BASE_IMAGE}
0.1  ---> 2e59fb4ac9fe
0.2 Step 3/7 : RUN set -eu; echo ${x}
0.2  ---> Using cache
0.2  ---> 123
0.3 Step 4/7 : COPY worker /opt/runner/worker
4.3 Step 5/7 : ARG RUNNER_UID=1000
4.4 Step 6/7 : RUN useradd
5.4 Step 7/7 : LABEL a=b
5.5 Successfully built 14fe5779c986
9.9 Successfully tagged x:y
"""
BUILDKIT = """
0 #1 [internal] load build definition from Dockerfile
0 #1 DONE 0.0s
0 #4 [1/5] FROM docker.io/library/base
0 #4 CACHED
0 #5 [2/5] RUN set -eu; echo ${x}
0 #5 CACHED
0 #6 [3/5] COPY worker /opt/runner/worker
0 #6 0.412 #5 DONE 99.0s
0 #6 DONE 4.0s
0 #7 [stage-0 4/5] RUN set -eu; [ "$RUNNER_UID" -ge 1 ]
0 #7 DONE 1.1s
0 #8 exporting to image
0 #8 DONE 0.3s
"""


def fed(text: str) -> BuildLog:
    log = BuildLog()
    for line in text.strip().splitlines():
        moment, _, said = line.partition(" ")
        log.feed(said, float(moment))
    return log


@pytest.mark.parametrize("text", [LEGACY, BUILDKIT])
def test_layers_made_and_layers_there(text: str) -> None:
    log = fed(text)
    assert (log.built, log.cached) == (2, 1)


def test_how_long_each_part_took() -> None:
    assert fed(LEGACY).seconds == pytest.approx({"packages": 4.2, "user": 1.2})
    assert fed(BUILDKIT).seconds == pytest.approx({"packages": 4.0, "user": 1.1})


def test_lines_that_mean_nothing_say_nothing() -> None:
    log = fed("0 DEPRECATED: The legacy builder\n0 #7 DONE x\n0 #9 DONE 3.0s\n0 Step by step")
    assert (log.built, log.cached, log.seconds) == (0, 0, {})

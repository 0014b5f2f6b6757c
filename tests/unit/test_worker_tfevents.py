"""What torch's and TensorBoard's writers wrote, read as TensorBoard reads it, and bad bytes."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tfevents

from tests.helpers import event_writers


def records(data: bytes) -> list[bytes]:
    """The data of each record of a whole file."""
    out, at = [], 0
    while at < len(data):
        length = tfevents.length_of(data[at : at + 12])
        assert length is not None
        body, end = data[at + 12 : at + 12 + length], at + 12 + length + 4
        assert tfevents.is_whole(body, data[end - 4 : end])
        out.append(body)
        at = end
    assert at == len(data)
    return out


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """{tag: [(step, value), …]} of a folder with one event file."""
    (path,) = folder.iterdir()
    known: set[str] = set()
    out: dict[str, list[tuple[int, float]]] = {}
    for data in records(path.read_bytes()):
        event = tfevents.decode(data, known)
        for tag, value in event.values:
            out.setdefault(tag, []).append((event.step, value))
    return out


def test_the_sum_is_crc32c() -> None:
    from tensorboard.summary.writer.record_writer import masked_crc32c

    assert tfevents.crc32c(b"123456789") == 0xE3069283
    assert tfevents.crc32c(b"") == 0
    draw = random.Random(0)
    for length in range(40):
        data = draw.randbytes(length)
        assert tfevents.masked(data) == masked_crc32c(data)


def test_what_torch_wrote_is_read_as_tensorboard_reads_it(tmp_path: Path) -> None:
    writer = event_writers.torch_writer(tmp_path)
    for step in range(0, 5000, 7):
        writer.add_scalar("charts/episodic_return", step * 0.37, step)
        writer.add_scalar("loss/Wert größer", -step / 3, step)
        writer.add_scalar("new", step / 7, step, new_style=True)
        writer.add_scalar("double", step / 7, step, new_style=True, double_precision=True)
    writer.add_scalar("at once", 1.0)
    writer.add_scalar("late", 1e30, 1 << 40)
    writer.add_histogram("weights", np.arange(1000.0), 3)
    writer.add_text("notes", "# text", 3)
    writer.add_image("picture", np.zeros((3, 40, 40), np.uint8), 3)
    writer.add_pr_curve("pr", np.array([0, 1]), np.array([0.1, 0.9]), 3)
    writer.close()
    found = read(tmp_path)
    assert found == event_writers.as_tensorboard_reads(tmp_path)
    assert len(found) == 6 and len(found["double"]) == 715
    assert found["double"][1] == (7, 1.0) and found["late"] == [(1 << 40, float(np.float32(1e30)))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensors_in_every_spelling(tmp_path: Path, dtype: str) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar import metadata
    from tensorboard.util import tensor_util

    whole = tensor_util.make_tensor_proto(np.array(0.25, dtype))
    apart = tensor_util.make_tensor_proto(np.array(0.5, dtype))
    apart.ClearField("tensor_content")
    field = apart.float_val if dtype == "float32" else apart.double_val
    del field[:]
    field.append(0.5)
    told = metadata.create_summary_metadata(display_name="", description="d")
    many = tensor_util.make_tensor_proto(np.ones(3, dtype))
    events = [
        # the metadata comes once; what is no scalar has other metadata or none
        Event(step=1, summary=Summary(value=[Summary.Value(tag="a", tensor=whole, metadata=told)])),
        Event(step=2, summary=Summary(value=[Summary.Value(tag="a", tensor=apart)])),
        Event(step=3, summary=Summary(value=[Summary.Value(tag="other", tensor=whole)])),
        Event(step=4, summary=Summary(value=[Summary.Value(tag="a", tensor=many)])),
    ]
    event_writers.write(tmp_path / "events.out.tfevents.1.x", event_writers.version(), *events)
    assert read(tmp_path) == {"a": [(1, 0.25), (2, 0.5)]}


def test_of_any_number_of_tensors_each_counts_that_says_what_it_is(tmp_path: Path) -> None:
    writer = event_writers.torch_writer(tmp_path)
    for number in range(tfevents._MOST_KNOWN + 10):
        writer.add_scalar(f"t/{number}", 1.0, 1, new_style=True)
    writer.close()
    assert len(read(tmp_path)) == tfevents._MOST_KNOWN + 10


def test_several_values_in_one_event_among_what_is_no_scalar() -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [
        Summary.Value(tag="a", simple_value=1.5),
        Summary.Value(tag="picture", image=Summary.Image(encoded_image_string=b"x" * 3000)),
        Summary.Value(tag="b", simple_value=-2.0),
        Summary.Value(tag="t" * 300, simple_value=9.0),
        Summary.Value(simple_value=7.0),
    ]
    event = Event(step=-5, wall_time=12.5, summary=Summary(value=values))
    found = tfevents.decode(event.SerializeToString(), set())
    assert found == (12.5, -5, [("a", 1.5), ("b", -2.0)], False)


def test_a_writer_that_begins_anew() -> None:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    begun = event_writers.start(40, 2.0).SerializeToString()
    assert tfevents.decode(begun, set()) == (2.0, 40, [], True)
    stopped = Event(step=40, session_log=SessionLog(status=SessionLog.STOP))
    assert not tfevents.decode(stopped.SerializeToString(), set()).is_start


def test_lengths_are_believed_only_with_their_sum() -> None:
    good = event_writers.header(5)
    assert tfevents.length_of(good) == 5
    for place in range(12):
        bad = bytearray(good)
        bad[place] ^= 1
        assert tfevents.length_of(bytes(bad)) is None
    assert tfevents.length_of(event_writers.header((1 << 64) - 1)) == (1 << 64) - 1
    assert tfevents.length_of(bytes(12)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x09\x00",  # a double of one byte
        b"\x10" + b"\xff" * 11,  # a number without an end
        b"\x2a\x7f",  # a summary longer than all
        b"\x2a\x02\x0a\x7f",  # a value longer than its summary
        b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0b",  # groups are none
        b"\x2a\x04\x0a\x02\x15\x00",  # a float of one byte
    ],
)
def test_what_is_no_event(data: bytes) -> None:
    with pytest.raises(tfevents.NoEvent):
        tfevents.decode(data, set())


def test_damaged_and_made_up_events_raise_nothing_else() -> None:
    draw = random.Random(7)
    told = event_writers.scalar("charts/episodic_return", 2.5, 700).SerializeToString()
    for _ in range(20_000):
        data = bytearray(told if draw.random() < 0.7 else draw.randbytes(draw.randrange(60)))
        for _ in range(draw.randrange(4)):
            if data:
                data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            event = tfevents.decode(bytes(data[: draw.randrange(len(data) + 1)]), set())
        except tfevents.NoEvent:
            continue
        assert all(isinstance(tag, str) and isinstance(v, float) for tag, v in event.values)


def test_floats_of_32_bits_are_told_in_few_digits() -> None:
    def single(value: float) -> float:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])

    assert tfevents.short(single(0.3)) == 0.3
    assert str(tfevents.short(single(1 / 3))) == "0.33333334"
    draw = random.Random(1)
    for _ in range(2000):
        value = single(draw.uniform(-1, 1) * 10.0 ** draw.randrange(-30, 30))
        assert single(tfevents.short(value)) == value
    exact: Any
    for exact in (1 / 3, 1e300, single(3.4028234e38), 0.0):
        assert tfevents.short(exact) == exact or single(tfevents.short(exact)) == exact

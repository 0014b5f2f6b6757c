"""Event files written by TensorBoard's and torch's own writers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any


def torch_writer(folder: Path, **options: Any) -> Any:
    """torch's SummaryWriter; what it writes is there once it is closed or flushed."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), **options)


def write(path: Path, *events: Any) -> Path:
    """A file of these events, each written as TensorBoard writes it."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        writer = RecordWriter(file)
        for event in events:
            data = event if isinstance(event, bytes) else event.SerializeToString()
            writer.write(data)
        file.flush()
    return path


def scalar(tag: str, value: float, step: int, wall: float = 0.0) -> Any:
    """An event with a simple value."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    told = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return Event(wall_time=wall or 1000.0 + step, step=step, summary=told)


def version(wall: float = 1.0) -> Any:
    """What a file begins with."""
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=wall, file_version="brain.Event:2")


def start(step: int, wall: float) -> Any:
    """What torch writes for `purge_step`."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    return Event(wall_time=wall, step=step, session_log=SessionLog(status=SessionLog.START))


def as_tensorboard_reads(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """{tag: [(step, value), …]} of all scalars in a folder, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    out = {
        tag: [(each.step, each.value) for each in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }
    for tag in found.Tags()["tensors"]:
        if found.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            out[tag] = [
                (each.step, tensor_util.make_ndarray(each.tensor_proto).item())
                for each in found.Tensors(tag)
            ]
    return out


def header(length: int) -> bytes:
    """The first 12 bytes of a record of that length."""
    from tensorboard.summary.writer.record_writer import masked_crc32c

    told = struct.pack("<Q", length)
    return told + struct.pack("<I", masked_crc32c(told))

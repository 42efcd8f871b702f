"""Streaming: a streamer sees what `generate` would have shown it, in the same order."""

import torch
from transformers.generation.streamers import BaseStreamer

from treespec.streaming import RowStreamer


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.seen.append(value.tolist())

    def end(self) -> None:
        self.ended = True


def test_one_row_streams_token_by_token():
    recorder = Recorder()
    stream = RowStreamer(recorder, 1, pad_id=0)
    stream.put(0, [4, 5], finished=False)
    stream.flush()
    stream.put(0, [6], finished=True)
    stream.flush()
    stream.end()

    assert recorder.seen == [[4], [5], [6]]
    assert recorder.ended


def test_a_batch_streams_positions_that_every_row_has_reached():
    recorder = Recorder()
    stream = RowStreamer(recorder, 2, pad_id=0)
    stream.put(0, [4, 5], finished=False)
    stream.put(1, [7], finished=False)
    stream.flush()

    assert recorder.seen == [[4, 7]]


def test_a_finished_row_streams_padding():
    recorder = Recorder()
    stream = RowStreamer(recorder, 2, pad_id=0)
    stream.put(0, [4], finished=True)
    stream.put(1, [7, 8], finished=False)
    stream.flush()

    assert recorder.seen == [[4, 7], [0, 8]]


def test_without_a_streamer_nothing_is_kept():
    stream = RowStreamer(None, 1, pad_id=0)
    stream.put(0, [1], finished=False)
    stream.flush()
    stream.end()

    assert stream._waiting == [[]]

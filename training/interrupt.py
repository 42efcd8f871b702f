"""Stopping in order when the user or the machine asks for it."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_ASKS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Notes SIGINT and SIGTERM while its `with` block runs, so that a step can be finished.

    A second signal acts as it would have without. Outside the main thread, where Python has no
    signals, nothing is noted.

    Attributes:
        came: whether somebody asked to stop.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._note) for one in _ASKS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (signal's form)
        self.came = True
        self._restore()

    def _restore(self) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)
        self._before = {}

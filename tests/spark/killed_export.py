"""An export that kills itself: `killed_export.py N DATA OUT` dies before the N-th thing that lasts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from malamute.spark import columns, export, export_location
from malamute.spark.history import open_history

left = int(sys.argv[1])


def killing(real: Callable[..., Any]) -> Callable[..., Any]:
    """The same, which kills the process when its time has come."""

    def call(*args: Any, **more: Any) -> Any:
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)

    return call


columns.BATCH_ROWS = export.FILE_ROWS = 1000
export_location.Sink.write = killing(export_location.Sink.write)  # type: ignore[method-assign]
export_location.ExportLocation._sync = killing(export_location.ExportLocation._sync)  # type: ignore[method-assign]
export.save = killing(export.save)  # type: ignore[attr-defined]

with open_history(data=sys.argv[2]) as history:
    export.export(history, "s", export_location.ExportLocation(sys.argv[3]))

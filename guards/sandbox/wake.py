"""Wakes a thread that waits on descriptors."""

from __future__ import annotations

import os
import threading


class Wake:
    """A descriptor that becomes readable when another thread says so."""

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe()
        self._open = True
        # A descriptor's number is soon another file's: nobody may write after the close.
        self._lock = threading.Lock()

    def set(self) -> None:
        """Make it readable; nothing happens once it is closed."""
        with self._lock:
            if self._open:
                os.write(self._writer, b"\0")

    def close(self) -> None:
        """Close it; to be called once."""
        with self._lock:
            self._open = False
            os.close(self.descriptor)
            os.close(self._writer)

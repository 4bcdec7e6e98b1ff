"""Makes what lies in `tests/lib` importable; the folders of tests share it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "lib"))

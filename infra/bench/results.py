"""How every benchmark reports: one RESULT line, and a JSON file with the raw rows."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def report(target: str, values: Mapping[str, float], rows: Sequence[Mapping[str, Any]], **about: Any) -> None:
    """Write `results/<target>-<time>.json` and print the closing line."""
    RESULTS.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%S")
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg()}
    body = {"target": target, "values": dict(values), "about": about, "machine": machine, "rows": list(rows)}
    path = RESULTS / f"{target}-{stamp}.json"
    path.write_text(json.dumps(body, indent=1))
    print(f"rows in {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    print(f"RESULT {target} " + " ".join(f"{k}={v:.4g}" for k, v in values.items()), flush=True)

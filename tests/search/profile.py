"""How many examples the property tests draw."""

from __future__ import annotations

import os

EXAMPLES = int(os.environ.get("PONDERA_EXAMPLES", "150"))

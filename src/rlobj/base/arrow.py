"""pyarrow.compute, whose functions type checkers do not know: pyarrow makes them on import.

Importing this takes a moment. Modules that must be light import it where they need it.
"""

from __future__ import annotations

import importlib
from typing import Any

pc: Any = importlib.import_module("pyarrow.compute")

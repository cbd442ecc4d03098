"""probe: recover, record, rebuild and prove the summation order of a GPU matrix multiplication.

One verb, one name: `probe walk` on the command line is `probe.walk(...)` here. Importing the package loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.verbs import walk

__version__ = "0.1.0"
__all__ = ["__version__", "walk"]


def __getattr__(name: str) -> object:
    if name == "walk":
        from probe.verbs import walk

        return walk
    raise AttributeError(f"module 'probe' has no attribute {name!r}")

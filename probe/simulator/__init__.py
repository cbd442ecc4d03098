"""Executing rounding schedules on a CPU or GPU, bit for bit: `execute` (fast, arrays) and `execute_exact`
(fractions).
"""

from probe.simulator.exact import execute_exact
from probe.simulator.execute import execute

__all__ = ["execute", "execute_exact"]

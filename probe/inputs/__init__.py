"""The only makers of operands: probes for walks, and seeded draws for comparing bytes (DESIGN sections 5 and 7)."""

from probe.inputs.draws import Draw, DrawKind
from probe.inputs.operands import Operands
from probe.inputs.probes import Axis, Pair, ProbeOperands, pair_for, paper_pair

__all__ = ["Axis", "Draw", "DrawKind", "Operands", "Pair", "ProbeOperands", "pair_for", "paper_pair"]

"""What the tests of campaigns share: a campaign of problems that are quickly proven, stand-ins for a library, and tables to compare."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import probe
from probe.campaign.folder import Folder
from probe.campaign.rows import MOVING, sorted_rows
from probe.children import Child

ROOT = Path(probe.__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
TINY = """
[[regime]]
name = "tiny"
m = {from = 24, to = 40}
n = {from = 24, to = 40}
k = {from = 8, to = 64}
outputs = ["fp32"]
"""
# Parts of a simulated library: elements of two orders, and one that breaks in a way a K each.
PATCHWORK = """
def summing(self, problem, answer, preference):
    from dataclasses import replace
    import numpy as np
    one = super().summing(problem, answer, preference)
    other = super().summing(problem, replace(answer, splitk_num=4, reduction_scheme=2), preference)
    whole = one.outputs
    def outputs(batch):
        # the last column comes from a kernel that splits K
        parts = [whole(batch), other.outputs(batch)]
        return [np.where((np.arange(problem.n) if cells is None else cells.columns) == problem.n - 1, b, a)
                for (_, cells), a, b in zip(batch, *parts)]
    one.outputs = outputs
    return one
"""
BREAKS = """
def summing(self, problem, answer, preference):
    if problem.k == 71: os.kill(os.getpid(), signal.SIGSEGV)
    if problem.k == 72: time.sleep(100)
    if problem.k == 73: raise MemoryError
    if problem.k == 74: raise LibraryError('cublasLtMatmul', 14, 'INTERNAL', 'it broke', 'try again')
    if problem.k == 75: raise ZeroDivisionError('a bug')
    return super().summing(problem, answer, preference)
"""


def campaign_file(folder: Path, problems: int = 12, more: str = "", regime: str = TINY, libraries: str = '["sim"]') -> Path:
    path = folder / "tiny.toml"
    path.write_text(f'seed = 11\nlibraries = {libraries}\nbudget = "{problems} problems"\n{more}\n{regime}')
    return path


def table(folder: Path) -> list[dict[str, Any]]:
    """The rows without what differs between two runs."""
    return [{name: value for name, value in row.items() if name not in MOVING} for row in sorted_rows(Folder(folder).read())]


def stand_in(folder: Path, oracle: str, name: str = "library.py") -> list[str]:
    """The command of a real child whose library is the simulated one with parts replaced: `oracle` is the body of a subclass."""
    program = folder / name
    program.write_text("import os, signal, time\nfrom pathlib import Path\nfrom probe.errors import *\n"
                       "from probe.oracle import Opened, SimulatedOracle\nfrom probe.worker import serve\n\n"
                       f"class Oracle(SimulatedOracle):\n{textwrap.indent(textwrap.dedent(oracle), '    ')}\n"
                       "serve(lambda: Opened(Oracle(), ''))\n")
    return [sys.executable, str(program)]


def children(commands: dict[str, list[str]], made: list[Child] | None = None) -> Callable[[str, int], Child]:
    """Makes the child of a library from its command, else probe's own."""
    def make(library: str, gpu: int) -> Child:
        child = Child(library, 0, name=f"{library} on GPU {gpu}", command=commands.get(library))
        if made is not None:
            made.append(child)
        return child

    return make

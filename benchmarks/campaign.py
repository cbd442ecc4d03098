"""Problems a second of `probe campaign run`, and where the time goes.

    python -m benchmarks.campaign [--library sim] [--gpu 0] [--problems 200] [--draws 10] [--regime small]

Prints, for a campaign of random problems with at least `draws` draws a proof: problems a second, host included; the seconds of each step
in the worker; what lies between worker and row (pipe, JSON, waiting); and what the parent needs for its rows.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from probe.campaign.folder import Folder
from probe.campaign.rows import STEPS
from probe.campaign.run import run_campaign
from probe.errors import Declined

_REGIMES = {
    "small": "m = {from = 8, to = 64}\nn = {from = 8, to = 64}\nk = {from = 8, to = 1024}",
    "ordinary": "m = {from = 1, to = 4096}\nn = {from = 1, to = 4096}\nk = {from = 8, to = 16384}",
    "deep": "m = {from = 1, to = 128}\nn = {from = 1, to = 128}\nk = {from = 2048, to = 100000}",
}


def measure(libraries: list[str], gpus: list[int], problems: int, draws: int, regime: str) -> None:
    """Run one campaign in a temporary folder and print its figures."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "bench.toml"
        file.write_text(f'seed = 1\ndraws = {draws}\nbudget = "{problems} problems"\nlibraries = {libraries}\ngpus = {gpus}\n'
                        f'dtypes = ["fp16", "bf16"]\noutputs = ["same", "fp32"]\n[[regime]]\nname = "{regime}"\n{_REGIMES[regime]}\n')
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        ran = run_campaign(file, Path(place) / "out")
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        if isinstance(ran, Declined):
            raise SystemExit(str(ran))
        rows = Folder(Path(place) / "out").read()
    print(f"{ran.rows} problems, {ran.counts.to_document()['outcomes']}")
    print(f"{ran.rows / ran.seconds:.1f} problems a second over {len(libraries) * len(gpus)} workers ({ran.seconds:.1f} s; "
          f"{wall - ran.seconds:.1f} s more to start and end)")
    proven = [row for row in rows if row["draws"]]
    least = min((sum(int(part.split(":")[1]) for part in row["draws"].split(",")) for row in proven), default=0)
    print(f"draws of a proof: at least {least}; output elements compared: {sum(row['outputs_compared'] or 0 for row in rows):,}")
    total = sum(row["elapsed_seconds"] for row in rows)
    print(f"\n{'milliseconds a problem':<28}{1e3 * total / len(rows):8.1f}")
    steps = {step: sum(row[f"{step}_seconds"] or 0.0 for row in rows) for step in STEPS}
    for step, seconds in steps.items():
        print(f"  {step:<26}{1e3 * seconds / len(rows):8.2f}{seconds / total:8.1%}")
    rest = total - sum(steps.values())
    print(f"  {'pipe, JSON, waiting':<26}{1e3 * rest / len(rows):8.2f}{rest / total:8.1%}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"parent, CPU milliseconds a problem (start included){1e3 * cpu / len(rows):8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", action="append")
    parser.add_argument("--gpu", type=int, action="append")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--regime", choices=_REGIMES, default="small")
    options = parser.parse_args()
    measure(options.library or ["sim"], options.gpu or [0], options.problems, options.draws, options.regime)


if __name__ == "__main__":
    main()

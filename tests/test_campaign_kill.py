"""SIGKILL at random moments: whatever was killed, the resumed table is that of a run that nobody touched."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from campaign_parts import ENVIRONMENT, campaign_file, table

from probe.campaign.run import Ran, resume_campaign, run_campaign

PROBLEMS = 24
# Three rows a part file, so that a kill meets the making of one as well.
PROGRAM = """
import sys
from pathlib import Path
from probe.campaign import folder
from probe.campaign.run import resume_campaign, run_campaign
folder.ROWS_A_PART = 3
out = Path(sys.argv[2])
print("begin", flush=True)
resume_campaign(out) if (out / "campaign.json").exists() else run_campaign(sys.argv[1], out, gpus=[0, 1])
"""


def _kill_and_compare(place: Path, kills: int, seed: int) -> None:
    """Kill runs until `kills` of them were killed at work; each campaign that comes to its end meanwhile is held to the undisturbed one."""
    generator = random.Random(seed)
    file = campaign_file(place, PROBLEMS)
    run_campaign(file, place / "whole")
    wanted = table(place / "whole")
    done = killed = most = 0
    while killed < kills:
        out = place / f"out-{done}"
        before = len(table(out)) if (out / "campaign.json").exists() else 0
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(file), str(out)], cwd=place, env=ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"begin\n", process.communicate()
        time.sleep(generator.uniform(0, 1.7))
        finished = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if finished:
            assert process.returncode == 0 and table(out) == wanted
            done += 1
            continue
        killed += 1
        if (out / "campaign.json").exists():
            rows = table(out)
            assert len(rows) >= before and all(row in wanted for row in rows)
            most = max(most, len(rows) - before)
    out = place / f"out-{done}"
    result = resume_campaign(out) if (out / "campaign.json").exists() else run_campaign(file, out)
    assert isinstance(result, Ran) and result.ended == "finished" and table(out) == wanted
    assert most > 0  # some kill met a run at work
    assert not list(out.rglob("*.part")) and not list(out.rglob("*.jsonl"))


@pytest.mark.slow
def test_a_run_that_is_killed_now_and_then_gives_the_same_table(tmp_path: Path) -> None:
    _kill_and_compare(tmp_path, 5, 1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_kills_give_the_same_table(tmp_path: Path) -> None:
    _kill_and_compare(tmp_path, 200, 2)


@pytest.mark.slow
def test_only_what_was_in_flight_is_lost(tmp_path: Path) -> None:
    """What a listener was told is on the disk: killed at that very moment, the row is there."""
    file = campaign_file(tmp_path, PROBLEMS)
    program = ("import os, signal, sys\nfrom probe.campaign.run import run_campaign\nseen = []\n"
               "def tell(event):\n    if event.kind == 'row':\n        seen.append(event.values['index'])\n"
               "        print(event.values['index'], flush=True)\n        if len(seen) == 7: os.kill(os.getpid(), signal.SIGKILL)\n"
               "run_campaign(sys.argv[1], sys.argv[2], progress=tell)\n")
    done = subprocess.run([sys.executable, "-c", program, str(file), str(tmp_path / "out")], env=ENVIRONMENT, capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    told = {int(line) for line in done.stdout.split()}
    assert len(told) == 7 and told <= {row["index"] for row in table(tmp_path / "out")}

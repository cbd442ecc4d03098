"""probe: recover, record, rebuild and prove the summation order of a GPU matrix multiplication.

One verb, one name: `probe walk` on the command line is `probe.walk(...)` here. Importing the package loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.asking.compare import compare_answers
    from probe.asking.run import ask
    from probe.campaign.admin import compact_campaign, export_campaign, import_campaign, list_campaigns, status_campaign, stop_campaign
    from probe.campaign.run import resume_campaign, run_campaign
    from probe.diagnosis import doctor
    from probe.difference.run import diff_libraries
    from probe.libraries import add_library, fetch_library, list_libraries, remove_library
    from probe.packs.run import check_pack, pack
    from probe.reachable import answers
    from probe.reproducer import bug_splitk_tail, report_splitk_tail
    from probe.verbs import walk

__version__ = "0.1.0"
__all__ = ["__version__", "add_library", "answers", "ask", "bug_splitk_tail", "check_pack", "compact_campaign", "compare_answers",
           "diff_libraries", "doctor", "export_campaign", "fetch_library", "import_campaign", "list_campaigns", "list_libraries",
           "pack", "remove_library", "report_splitk_tail", "resume_campaign", "run_campaign", "status_campaign", "stop_campaign",
           "walk"]

# verb -> the module that has it
_VERBS = {
    "add_library": "probe.libraries",
    "answers": "probe.reachable",
    "ask": "probe.asking.run",
    "bug_splitk_tail": "probe.reproducer",
    "check_pack": "probe.packs.run",
    "compact_campaign": "probe.campaign.admin",
    "compare_answers": "probe.asking.compare",
    "diff_libraries": "probe.difference.run",
    "doctor": "probe.diagnosis",
    "export_campaign": "probe.campaign.admin",
    "fetch_library": "probe.libraries",
    "import_campaign": "probe.campaign.admin",
    "list_campaigns": "probe.campaign.admin",
    "list_libraries": "probe.libraries",
    "pack": "probe.packs.run",
    "remove_library": "probe.libraries",
    "report_splitk_tail": "probe.reproducer",
    "resume_campaign": "probe.campaign.run",
    "run_campaign": "probe.campaign.run",
    "status_campaign": "probe.campaign.admin",
    "stop_campaign": "probe.campaign.admin",
    "walk": "probe.verbs",
}


def __getattr__(name: str) -> object:
    if name in _VERBS:
        return getattr(importlib.import_module(_VERBS[name]), name)
    raise AttributeError(f"module 'probe' has no attribute {name!r}")

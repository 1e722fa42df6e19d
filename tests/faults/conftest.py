"""The judge for histories of real processes; stores and their outages."""

from tests.faults.store_outages import site
from tests.judge.fix_judge import go_judge, go_judge_binary

__all__ = ["go_judge", "go_judge_binary", "site"]

"""The judge for histories of real processes."""

from tests.judge.fix_judge import go_judge, go_judge_binary

__all__ = ["go_judge", "go_judge_binary"]

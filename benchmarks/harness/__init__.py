"""The framework of all benchmarks: locks, worker processes, scenarios, reports."""

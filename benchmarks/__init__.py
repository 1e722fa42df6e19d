"""Benchmarks of the locks, side by side with their peers: ``nox -s bench``."""

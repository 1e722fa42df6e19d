"""The benchmarks of the documentation: all suites in one run, plots, and the page."""

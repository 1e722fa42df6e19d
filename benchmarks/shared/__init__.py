"""What benchmarks on a server have in common: workers, jobs, bars, the report."""

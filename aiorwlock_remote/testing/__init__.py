"""Tools for tests: fixtures, fault injection, history checks, a backend suite."""

"""Help for tests of programs that use locks, and the proof that a backend is one."""

"""Tools that test: programs that use locks, our locks, and third-party backends."""

"""Tools that test locks: ours, and those of third-party backends."""

"""The harnesses of our own backends."""

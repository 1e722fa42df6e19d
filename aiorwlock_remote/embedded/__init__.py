"""Stores that code of ours changes under a lock of the operating system, in threads."""

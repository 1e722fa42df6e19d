"""Stores in local files: this library changes them in threads, under file locks."""

"""Stores in local files, which threads of this process change under file locks."""

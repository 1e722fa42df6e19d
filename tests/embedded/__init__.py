"""Stores in files: what they have in common."""

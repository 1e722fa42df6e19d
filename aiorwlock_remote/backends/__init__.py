"""Stores, each independent of the others; found by URL scheme in ``registry``."""

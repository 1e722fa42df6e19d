"""Helpers for every layer: pending replies, threads, random ids, statements, TLS."""

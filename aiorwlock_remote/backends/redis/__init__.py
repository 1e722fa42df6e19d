"""Locks in Redis or Valkey: one script a step, one connection of our own."""

"""Locks with the signatures of other libraries: a program changes one import."""

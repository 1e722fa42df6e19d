"""Integrations with other libraries; each needs the library that its name says."""

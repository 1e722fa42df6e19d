"""The cases, by subject. Each docstring says what is promised."""

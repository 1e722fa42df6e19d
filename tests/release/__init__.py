"""What is checked before a release: `nox -s release` runs all of it."""

"""The cases of the conformance suite, one module for each subject."""

"""The documentation and what makes it.

A package, as a package of the tests brings modules of the name ``docs``, too.
"""

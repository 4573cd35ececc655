"""Making the environments, with nothing but the standard library of Python 3.9 or later.

It runs before any package is installed, and on the interpreter that the machine happens to have;
the environments themselves get Python 3.11 or 3.12.
"""

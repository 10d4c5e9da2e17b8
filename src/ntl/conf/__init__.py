"""The configuration: its files, and the modules that compose, check and translate it.

Hydra finds the files by this package's name.
"""

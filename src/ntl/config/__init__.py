"""The configuration: its files, which Hydra finds by this package's name, and the modules that use them.

The modules compose the configuration, check it and translate it into settings.
"""

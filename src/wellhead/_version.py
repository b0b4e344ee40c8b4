"""The version, here and nowhere else: the package, its metadata and the server read it from this line."""

__version__ = "0.1.0"

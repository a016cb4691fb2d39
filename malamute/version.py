"""The version, where every package can read it without loading the client."""

__version__ = "0.1.0"

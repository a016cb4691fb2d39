"""Adapters of frameworks: each module needs the extra of its name, and uses public names of the SDK alone."""

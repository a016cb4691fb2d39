"""The net and the process around the core."""

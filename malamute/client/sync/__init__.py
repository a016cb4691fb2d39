"""The edge for blocking programs. `malamute` has its public names."""

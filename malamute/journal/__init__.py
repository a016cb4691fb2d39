"""The disk: record format, LMDB store and its in-memory twin."""

"""The ground floor of the store: operations and policies, as values. Pure.

This package imports nothing of Malamute but `errors` and `protocol`, and is cheap to import:
`malamute.journal` and the programs that read history need no broker.
"""

"""The mind of the broker: sessions, streams, mailboxes, services. Pure.

The core itself is `malamute.core.broker.Core`.
"""

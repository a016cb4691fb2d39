"""The state and the decisions of one client, without a socket, a clock, a thread or chance.

`session` is its life, from one connection to the next. Its parts: `outbox` (commands, until they are
answered), `inbox` (of `sources`, each with its credit `window`), `sending`, `replies` and `questions`.
`route` chooses the URL and the wait before the next attempt to reconnect. `message`, `receipts` and `batch`
are values, and `codecs` make bodies of others.
"""

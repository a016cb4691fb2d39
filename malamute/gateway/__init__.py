"""The HTTP gateway: a process of its own that serves browsers, scripts and other languages.

It is an ordinary client of the broker, by `malamute.aio`: each request acts through a session with the same
user, so the broker decides what is allowed. `app` makes the ASGI application out of the tables of
routes, `server` runs it. `malamute gateway run` starts it; docs/guides/http.md shows what it does.
"""

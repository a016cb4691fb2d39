"""The HTTP gateway: a process of its own that serves browsers, scripts and other languages.

The gateway is an ordinary client of the broker, by `malamute.aio`: each request acts through a session with
the same user, so the broker's rules decide. `app` makes the ASGI application out of the tables of routes,
`server` runs it. `malamute gateway run` starts it; docs/guides/http.md is the guide.
"""

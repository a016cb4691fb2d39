"""The common part of both edges: the socket, the connection over it, and the calls around each wait.

`link` is the socket, `connection` one link after the other, `driver` the iteration. Calls that wait are
written once, as coroutines over `Driver.wait`: `client`, `publisher`, `consumers`, `handlers`.
"""

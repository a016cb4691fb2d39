"""What both edges share: the socket, the connection over it, and all that happens around a wait.

`link` is the socket, `connection` one link after the other, `driver` the iteration. What waits is written
once, as coroutines over `Driver.wait`: `client`, `publisher`, `consumers`, `handlers`.
"""

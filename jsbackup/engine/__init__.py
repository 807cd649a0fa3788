"""Everything that talks to servers: the only asynchronous code.

`link/` is the connection and its requests; `read/` reads streams; `backup/`, `follow/`, `restore/` and `clone/` are the
runs; `check/` examines servers and repositories without changing anything in use.
"""

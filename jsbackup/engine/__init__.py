"""Everything that talks to NATS servers. Asynchronous.

`link/` is the connection and its requests; `read/` reads streams; `backup/`, `follow/`, `restore/` and `clone/` are the
runs; `check/` examines servers and repositories without changing anything in use.
"""

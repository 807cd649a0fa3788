"""The only asynchronous code: what speaks to servers.

`link/` is the connection and its requests; `read/` reads streams; `backup/`, `follow/`, `restore/` and `clone/` are the
runs; `check/` looks without changing anything that is in use.
"""

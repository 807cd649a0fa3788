"""Put chosen messages, keys or a file of an object store from a backup into a stream that is in use, as new messages.

In come a repository, a connection and what is chosen (`model.py`); out goes a plan (`plan.py`), and what was written
(`run.py`). Nothing is written if something of it is refused.
"""

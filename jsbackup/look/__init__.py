"""Reading single things out of backups: messages, keys and their values, object files, histories.

In come a repository, manifests, and what is looked for; out go messages and small records about them. No server, no
Spark, and nothing is written. Only the segments, row groups and columns that may have what is looked for are read
(`stream.py`).
"""

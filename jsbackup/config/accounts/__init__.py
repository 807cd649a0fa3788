"""Logins for many accounts at once: credentials files, seeds of accounts, nsc's folders, contexts.

In comes the file of `--accounts`, out go logins and seeds with the account that each is for. Nothing here
talks to a server.
"""

"""Logins for many accounts at once: credentials files, seeds of accounts, nsc's folders, contexts, a file of logins.

In come the values of `--account-…` options, out go logins and seeds with the account that each is for. Nothing here
talks to a server.
"""

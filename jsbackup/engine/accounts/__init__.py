"""All accounts of a system at once: finding them, logging in to each, backing them up, restoring them.

In come a connection of a user of the system account, and logins for accounts; out go the results of each account.
"""

"""What tables that grow lack of the backups of a repository: of those between two exports, and of older ones.

In: what an export adds to each table, and the other backups. Out: what is left out and noted, and what is refused.
"""

"""A store with a layout and rules: segments, manifests that commit backups, and what keeps them safe.

On this floor is what the rooms share: keys of objects (`layout.py`), manifests, documents, segments, the catalog.
`write/` puts backups in, `read/` finds and compares what is there, `keep/` decides what stays, `checks/` finds damage,
`crypto/` seals and signs.
"""

"""A store with a layout and rules: segments, manifests that commit backups, and what keeps them safe.

Modules at this level are shared by the packages below: keys of objects (`layout.py`), manifests, documents, segments,
the catalog. `pages/` has long lists of segments, `write/` puts backups in, `read/` finds and compares what is there,
`keep/` decides what stays, `checks/` finds damage, `crypto/` seals and signs.
"""

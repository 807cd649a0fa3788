"""Lists that are too long for a manifest, of segments and of streams: stored in pages, which backups share.

A *page* is an immutable document, named by its content, that lists consecutive segments of one stream (level 0), or
pages of the level below. A manifest names the pages of the highest level, and after them what is in no page of that
level yet, down to single segments. Backups share pages as they share segments, so a manifest and what is written with
it grow with what changed, not with what is stored. `segment_list.py` is what the rest of jsbackup sees,
`segment_pages.py` has the documents, where pages end, and how they are stored and read.

A *page of streams* lists streams of a backup that has many: `stream_pages.py`. `stream_json.py` has its entries.
"""

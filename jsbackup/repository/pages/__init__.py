"""Lists that are too long for a manifest, of segments and of streams: stored in pages, which backups share.

A *page* is an immutable document, named by its content, that lists consecutive segments of one stream (level 0), or
pages of the level below. A manifest names the pages of the highest level, and after them what is in no page of that
level yet, down to single segments. A *page of streams* lists streams of a backup that has many. Backups share pages as
they share segments, so a manifest and what is written with it grow with what changed, not with what is stored.

`page_store.py` stores and reads the pages of both kinds. `segment_list.py` is what the rest of jsbackup sees of a list
of segments; `segment_pages.py` and `stream_pages.py` have the rows, and where pages end; `stream_json.py` has the
entry of a stream.
"""

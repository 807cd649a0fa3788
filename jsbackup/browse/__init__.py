"""The page of `jsbackup browse`: backups to look at in a browser, read only.

In comes an opened repository; out goes a web server on this machine. Pages are made of templates (`templates/`) and the
style sheet of `html/`; what they show is read by `look/`, `repository/`, `planning/` and the previews of `engine/`.
Handlers are plain functions, which Starlette runs in threads, so that one that reads does not stop the others.

Anyone who holds the token sees everything, others see nothing (`guard.py`). Nothing is written, and nothing is
restored.
"""

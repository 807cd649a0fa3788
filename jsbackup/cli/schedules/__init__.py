"""Files that run the commands of a profile: what runs when (`jobs.py`), and the formats.

`cron.py`, `systemd.py` and `kubernetes.py` each return the files of a `Plan` as text. Nothing here reads or writes
files, and the results contain no secrets, only references to them.
"""

"""Ready files that run the commands of a profile: what runs when (`jobs.py`), and the forms it is written in.

`cron.py`, `systemd.py` and `kubernetes.py` each give the files of a `Plan` as text. Nothing here reads or writes a
file, and none of what is made holds a secret: secrets are named by where they are.
"""

"""Files that run the commands of a profile: what runs when (`schedule.py`), and the files, as templates."""

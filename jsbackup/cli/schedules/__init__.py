"""Files that run the commands of a profile: what runs when (`planning.py`), and the files, as templates."""

"""What builds jsbackup: `pyproject.toml` names `jsbackup_build.py`. Nothing else imports it."""

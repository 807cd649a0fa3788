"""Jobs on stored messages, on Spark or in this process; the only code that imports Spark.

`session/` opens a session, `messages/` reads backups as DataFrames, `tables/` reads and writes foreign files, `tasks/`
run on executors or here (`tasks/runner.py`), `jobs/` implement the commands. What runs here does not import Spark.
"""

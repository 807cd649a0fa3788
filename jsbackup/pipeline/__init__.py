"""Jobs on stored messages, on Spark or in this process; the only code that imports Spark.

`session/` opens a session, `messages/` reads backups as DataFrames, `tables/` reads and writes foreign files, `tasks/`
run on executors or here (`tasks/runner.py`), `jobs/` implement the commands. What runs here does not import Spark.
"""

import sys

if sys.modules.get("numpy", sys) is None:  # kept out by `memory.keep_one_heap`: Spark needs it
    del sys.modules["numpy"]

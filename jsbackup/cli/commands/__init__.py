"""One module for each command, or for a few related ones. Imported when the command is run. Packages are named after
the headings of `--help`; `spark/` has what needs Spark.
"""

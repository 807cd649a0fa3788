"""Messages of a backup as rows and DataFrames: the data source, its columns, and the segments that a query needs."""

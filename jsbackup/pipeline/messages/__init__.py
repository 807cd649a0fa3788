"""Messages of a backup as rows and DataFrames: the data source, its columns, which segments a query needs."""

"""Options of several commands, and the connection, repository and backup opened with them."""

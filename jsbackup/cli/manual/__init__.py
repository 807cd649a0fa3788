"""`jsbackup help`: finds pages of the manual (`jsbackup/manual/*.md`) and shows them, without a network."""

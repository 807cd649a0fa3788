"""`jsbackup help`: find pages of the manual (`jsbackup/manual/*.md`) and show them, offline."""

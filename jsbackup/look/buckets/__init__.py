"""Key-value buckets and object stores in backups: keys and files as they were at a moment, and what became of them."""

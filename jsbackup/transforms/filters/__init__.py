"""Which messages are kept: by subject, headers and payload; the newest of each subject; all as rows of batches."""

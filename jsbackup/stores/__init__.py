"""Named bytes: a folder, S3, memory; one contract, with retries around it."""

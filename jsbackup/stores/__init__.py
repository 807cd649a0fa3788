"""Named bytes in a folder, in S3 or in memory: a common interface, and a wrapper that retries."""

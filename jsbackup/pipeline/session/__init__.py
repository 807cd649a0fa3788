"""A Spark session, embedded, on a cluster or remote: Java, our package, and the repository for executors."""

"""Configurations as files of other tools that create streams and consumers: NACK for Kubernetes, and Terraform."""

"""The command line: parse options, make one call that does the work, and print the result.

`commands/` has a module for each command; `options/` shared options; `output/` text, JSON, pages and bars; `profiles/`
options from a file; `notify/` notifications about runs; `schedules/` files for cron, systemd and Kubernetes.
"""

"""The command line: options are parsed, one call does the work, one output tells what came of it.

`commands/` has a module for each command; `options/` what they share; `output/` text, JSON, pages and bars;
`profiles/` options from a file; `notify/` who is told; `schedules/` files for cron, systemd and Kubernetes.
"""

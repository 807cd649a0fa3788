"""The command line: parse options, make one call that does the work, and print the result.

`commands/` has a module for each command; `parsing/` how typed lines become values; `options/` options of several
commands; `output/` text, JSON, pages and bars; `profiles/` options from a file; `notify/` notifications about runs;
`schedules/` files for cron, systemd and Kubernetes.
"""

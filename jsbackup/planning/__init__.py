"""What a restore or a clone will do, decided before anything is sent.

Input: a manifest, the state of the target, the options. Output: a plan, with refusals and warnings, each with its rule.
Nothing here talks to a server.
"""

"""What a restore or a clone will do, decided before anything is sent.

In: a manifest, a picture of the target, the options. Out: a plan, with refusals and warnings, each by its rule. Nothing
here speaks to a server.
"""

"""Replace names, subjects and payloads by keyed hashes and zeros, as `nats backup edit --obfuscate` does.

Configurations and batches of messages come in, in clear; the same go out without what names things. `names.py` has the
hashes, and the file that leads back from them.
"""

"""Bytes and batches: S2 frames, Parquet segments, digests, and (`archive/`) the archives that servers send and accept.

The compiled kernel has a twin in Python; `kernels.py` chooses.
"""

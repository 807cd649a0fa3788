"""Executing and proving a plan: sending archives, removing leftovers, reading the streams back."""

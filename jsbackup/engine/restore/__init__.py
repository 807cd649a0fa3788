"""A plan carried out and proved: archives sent, what is left behind removed, what arrived read back."""

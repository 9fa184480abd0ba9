"""Drafter networks in the form that trains: whole documents in, gradients out."""

"""Figures of curves, attention and images."""

"""Capture, measures and claims for the reproducible study of outlier tokens and registers in Vision
Transformers.
"""

"""Learners: the settings, beliefs and scores behind every estimator and command."""

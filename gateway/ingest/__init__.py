"""Intake: the `emit` of every channel decides about each notification, appends it to the log and announces it."""

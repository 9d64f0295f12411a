"""Vocabulary and services that several layers speak in: events, facts, identity, clock, redaction, processes."""

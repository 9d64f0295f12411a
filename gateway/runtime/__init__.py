"""Agents at work: the DMN loop, turns, model clients, rewind."""

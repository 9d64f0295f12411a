"""Command line `reverie`: run, setup, doctor, console, backup, replay, demo, and commands to a running gateway."""

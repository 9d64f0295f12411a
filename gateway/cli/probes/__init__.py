"""Asks the world whether what an operator wrote down works: live, bounded in time, and without telling secrets.

`reverie setup` asks while answers are typed, `reverie doctor` afterwards.
"""

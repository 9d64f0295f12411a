"""The processes of one gateway: who is there, and who holds what.

- `cluster.py`: the interface that the services use. `Cluster` itself is a gateway of one process.
- `database.py`: processes that share a PostgreSQL database. Imported only for these.
- `monitor.py`: what a process says of itself and of the others.
"""

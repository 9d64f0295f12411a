"""The processes of one gateway: who is there, who holds what, and calls from one to another.

- `cluster.py`: the interface that the services use. `Cluster` itself is a gateway of one process.
- `database.py`: processes that share a PostgreSQL database. Imported only for these.
"""

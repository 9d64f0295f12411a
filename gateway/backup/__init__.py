"""Everything of a gateway that cannot be made again, in one file, and back.

`manifest` says what stands in one (pure); `kept` which files these are; `making` writes an archive beside a running
gateway; `reading` takes one apart and believes nothing that it says; `placing` puts what was taken apart where it
belongs; `settling` tells the restored store what can no longer be known. The store itself is `gateway.store.backup`'s,
and what a kill leaves half is `gateway.store.moves`'s.
"""

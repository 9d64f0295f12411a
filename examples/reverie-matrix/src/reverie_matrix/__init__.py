"""Matrix (https://spec.matrix.org) as a platform of Reverie, over matrix-nio.

- `channel`: `MatrixChannel`, which follows the rooms; built on `actions`: messages, files,
  reactions, rooms.
- `client`: requests to the homeserver, with the errors of the gateway.
- `events`: events of rooms into notifications; `html`: Markdown into the HTML of Matrix, and back.
  Both are pure.
"""

"""What texts and names do that nobody sees, on the way in and out. Pure, and known to channels and the agent.

`marks` finds characters that nobody sees or that turn lines around: on the way in they are told or left out where the
model reads them (`agent.prompt`, `agent.fence`) and in names (`channels.text.clean_name`), on the way out they are left
out of posts (`gateway.outbox`). `names` knows which names only look alike (`gateway.hearing`). `mentions` keeps a post
from calling many people at once, on platforms that cannot be told not to.
"""

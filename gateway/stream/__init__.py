"""Notification stream: from the channels' events to the agents, and from posts to the platforms.

- `supervisor`: runs the channels, restarts them, and follows the configuration; `operator`: the
  operator's own channel; `rooms`: joining and leaving.
- `attention`: type, urgency and fate of each event (pure), and thresholds set by command; `loops`:
  guards against bot loops; `presence`: how present people are; `inbox`: windows that collect
  messages of a conversation.
- `routing`: bindings, and who can read a place.
- `outbox`: posts to deliveries, by the rules of `delivery_policy` (pure); `again`: answers that may
  not have arrived; `mute`: places where the bot may not post; `media`: attachments, and files of
  posts.
- `handle`: what most services work with. `notices`: what owners should know; `store_outages`: that
  the log cannot be written.

Posts and events are durable before anybody acts on them, so that a crash loses none: inbox, outbox,
rooms and presence subscribe to the log (`Store.subscribe`). An exception of an adapter ends its
attempt and is logged; it never stops the gateway. A `StoreError` always does.
"""

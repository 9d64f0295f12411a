"""Notification stream: from the channels' events to the agents, and from posts to the platforms.

- `supervisor`: runs the channels, restarts them, and follows the configuration; `operator`: the
  operator's own channel; `internal`: intake of events from inside the gateway; `rooms`: joining and
  leaving.
- `attention`: type, urgency and fate of each event (pure), guards against bot loops, thresholds set
  by command; `presence`: how present people are; `inbox`: windows that collect messages of a
  conversation.
- `routing`: bindings, and who can read a place.
- `outbox`: posts to deliveries, by the rules of `delivery_policy` (pure); `again`: answers that may
  not have arrived; `outgoing_files`: files of posts; `media`: attachments.

Posts and events are durable before anybody acts on them, so that a crash loses none: inbox, outbox,
rooms and presence subscribe to the log (`Store.subscribe`). An exception of an adapter ends its
attempt and is logged; it never stops the gateway. A `StoreError` always does.
"""

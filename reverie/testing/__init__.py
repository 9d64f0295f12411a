"""Tests of plugins: fakes of the platforms and the model APIs, conformance kits, a gateway.

- `gateway`: a whole gateway on real parts, with consoles in place of platforms and a model that a
  test answers for (`played_model`). `simulated_time`: a clock that jumps.
- `servers`: strict fakes on loopback: IRC, the Bot API, Discord, model APIs, a proxy, a web site.
- `platforms`: what every adapter must hold, and broken adapters that the checks must find out.
- `pytest_plugin`: fixtures of clocks, gateways and fakes, which pytest finds by itself.
- `providers`, `plugins`: what every client of a model API and every plugin must hold.
- `channels`: a channel that runs, and what it emitted. `waiting`, `stopwatch`: waits, and time as a
  program lives it.

It is installed with the gateway, and imported by none of its parts; `reverie demo` uses two servers.
"""

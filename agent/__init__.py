"""The agent core: what to do next (`dmn`), what the model sees (`prompt`, `view`), one turn (`turn`)."""

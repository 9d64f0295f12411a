"""Settings: pydantic models, YAML files with positions, checks across sections, reload while the gateway runs."""

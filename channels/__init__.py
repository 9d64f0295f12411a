"""Channel adapters: one folder per platform, all behind `channels.base.Channel`."""

"""Every Redis access: key names, Lua scripts, one module per concern."""

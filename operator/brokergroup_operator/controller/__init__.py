"""The controller plane: remoting server, controller_core, record store, role changes."""

"""The server half of every HTTP door: the protocol with its bounds, doors to listen on, and bodies within limits."""

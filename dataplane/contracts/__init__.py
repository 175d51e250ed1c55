"""What both planes agree on: pure structs and pure functions, no torch, no Django, no sockets.

Every message that crosses a process is a :class:`msgspec.Struct` defined here. Readers decode into these types, so a
message that does not fit is refused at the border and nowhere else.
"""

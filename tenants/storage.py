"""What a tenant may keep here. These limits are decided in the control plane, before bytes flow."""

import msgspec

_GIB = 1024**3


class StorageLimits(msgspec.Struct, frozen=True):
    """Limits of what a tenant keeps; None is no limit of its own: :data:`DEFAULT_STORAGE` holds.

    Args:
        stored_bytes: the bytes of its files, those announced by open uploads included.
        stored_files: how many files these are; the same content in several versions is one.
        open_uploads: uploads that are neither given up nor, once complete, validated to their end.
    """

    stored_bytes: int | None = None
    stored_files: int | None = None
    open_uploads: int | None = None


DEFAULT_STORAGE = StorageLimits(stored_bytes=200 * _GIB, stored_files=2_000, open_uploads=8)

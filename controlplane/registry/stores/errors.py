"""What a store says when it cannot do something."""


class StoreError(Exception):
    """A blob that cannot be stored or trusted; the message says why and what to do."""


class DigestMismatch(StoreError):
    """The bytes are not those that were promised."""


class StoreFull(StoreError):
    """No room is left."""


class StoreUnavailable(StoreError):
    """The store does not answer, or refuses us."""


class PartMissing(StoreError):
    """An upload lacks a part that it should have."""


class UploadGone(StoreError):
    """There is no such upload, or it takes no more parts."""

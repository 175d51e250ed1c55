"""Text that people type, checked once at the border: what tables, logs and pages cannot carry is refused by name."""

import re
import unicodedata

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from tenants.errors import Invalid
from tenants.models import SLUG_PATTERN

_EMAIL_MAX_CHARS = 254
_UNSHOWABLE = ("Cc", "Cs", "Zl", "Zp")
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Unicode's Bidi_Control: a name with one of them reads as another name, wherever it stands in a sentence."""


def one_line(text: str, *, field: str, max_chars: int) -> str:
    """Return ``text`` in NFC without the space around it.

    Raises:
        Invalid: it is empty, too long, or has control characters (those of text direction too) or lone surrogates.
    """
    line = unicodedata.normalize("NFC", text).strip()
    if not line:
        reason = "Write something here."
    elif len(line) > max_chars:
        reason = f"This has {len(line)} characters; at most {max_chars} are taken."
    elif any(unicodedata.category(character) in _UNSHOWABLE for character in line):
        reason = "This has characters that cannot be shown on one line."
    elif not _BIDI_CONTROLS.isdisjoint(line):
        reason = "This has invisible characters that turn the direction of text. Write it without them."
    else:
        return line
    raise Invalid(f"The field {field} is refused. {reason}", fields={field: reason})


def email_address(text: str) -> str:
    """Return the address in lower case.

    Raises:
        Invalid: it is not one.
    """
    address = one_line(text, field="email", max_chars=_EMAIL_MAX_CHARS).lower()
    try:
        validate_email(address)
    except ValidationError as error:
        reason = "This is not an e-mail address."
        raise Invalid(reason, fields={"email": reason}) from error
    return address


def slug(text: str) -> str:
    """Return a tenant's slug.

    Raises:
        Invalid: it is not of the form of one.
    """
    if re.fullmatch(SLUG_PATTERN, text, re.ASCII) is None:
        reason = "Use 3 to 40 lower-case letters, digits and dashes, a letter first and no dash last."
        raise Invalid(f"{text!r} cannot be a tenant's name in URLs. {reason}", fields={"slug": reason})
    return text

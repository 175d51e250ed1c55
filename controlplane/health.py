"""Whether this process answers. It says nothing of what stands behind it, and nobody has to sign in to ask."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe


@require_safe
def live(request: HttpRequest) -> HttpResponse:
    """Answer 200 with the word ``ok``."""
    return HttpResponse("ok", content_type="text/plain")

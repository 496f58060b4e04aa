"""Credentials that boto3 finds, looked for again when the server no longer takes them."""

from __future__ import annotations

from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import boto3
    from botocore.credentials import Credentials, ReadOnlyCredentials
    from mypy_boto3_s3 import S3Client

__all__ = ["FoundCredentials", "renew_when_expired"]

_EXPIRED = frozenset(
    {"ExpiredToken", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
"""The last one: a key got another secret, as Ceph and MinIO allow."""
_SIGNED_WITH, _RENEWED = "flinkpy-signed-with", "flinkpy-renewed"


class FoundCredentials:
    """What boto3's chain finds (environment, profile, role, container, machine), in the place of botocore's own.

    boto3 refreshes credentials of roles before they expire. It does not read keys in a file again, and it does not know
    that a server has ended a session early. So they are looked for once more when a request is refused.

    Args:
        found: What the chain has found.
    """

    def __init__(self, found: Credentials) -> None:
        self._found = found
        self._lock = Lock()

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the credentials of the moment: botocore asks for some."""
        return getattr(self._found, name)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Returns the keys to sign a request with."""
        return self._found.get_frozen_credentials()

    def renew(self, refused: ReadOnlyCredentials) -> bool:
        """Looks for other credentials than those that were refused, and returns whether there are any."""
        import boto3

        with self._lock:  # of many requests that are refused at once, one looks
            if self._found.get_frozen_credentials() == refused:
                self._found = boto3.Session().get_credentials() or self._found
            return self._found.get_frozen_credentials() != refused

    def session(self) -> boto3.Session:
        """Returns a session whose clients sign with these."""
        import boto3
        from botocore.session import get_session

        session = get_session()
        session.register_component("credential_provider", SimpleNamespace(load_credentials=lambda: self))
        return boto3.Session(botocore_session=session)


def renew_when_expired(client: S3Client, credentials: FoundCredentials) -> None:
    """Makes a client send a request again, once, with new credentials if the server says that the old ones expired.

    Args:
        client: A client of the credentials' session.
        credentials: What it signs with.
    """

    def before_sign(request: Any, **_: Any) -> None:
        request.context[_SIGNED_WITH] = credentials.get_frozen_credentials()

    def needs_retry(response: Any, request_dict: dict[str, Any], **_: Any) -> Any:
        """Returns after how many seconds the request is sent again, or None if it is not."""
        context = request_dict["context"]
        if response is None or _SIGNED_WITH not in context or _RENEWED in context:
            return None
        http, parsed = response
        code = parsed.get("Error", {}).get("Code")
        unexplained = http.status_code in (400, 403) and code == str(http.status_code)  # the answer to a HEAD
        if not (code in _EXPIRED or unexplained) or not credentials.renew(context[_SIGNED_WITH]):
            return None
        context[_RENEWED] = True
        return 0

    client.meta.events.register("before-sign.s3", before_sign)
    client.meta.events.register("needs-retry.s3", needs_retry)

"""TLS between driver and slots, and among slots (Flink: ``security.ssl.internal``).

Each execution attempt has a certificate of its own. Slots get it with its key from Spark, as they get their token. Both
ends of a connection show it, and expect it of the other: so a slot takes programs only from its driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow.flight as flight

from dagster_flinkpy.errors import ConfigurationError, SlotProtocolError
from dagster_flinkpy.runtime.exchange.frames import TokenCheck

__all__ = ["AttemptCertificate", "Endpoint", "address_at", "connect", "new_certificate", "server_options"]

_NAME = "flinkpy"
"""The name in the certificate. No host is compared with it: who has the key is of the attempt."""
_SKEW, _LIFE = timedelta(days=1), timedelta(days=3650)
"""How much the clocks of machines may differ, and how long an attempt may take."""


@dataclass(frozen=True)
class AttemptCertificate:
    """The certificate of an execution attempt, and its key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def new_certificate() -> AttemptCertificate:
    """Returns a new certificate, which nobody has signed but itself.

    Raises:
        ConfigurationError: The package that makes certificates is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigurationError(
            "security.ssl.internal.enabled needs the package 'cryptography' where the job is started: "
            "pip install 'dagster-flinkpy[tls]'"
        ) from error
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return AttemptCertificate(
        certificate.public_bytes(encoding), key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    )


class Endpoint(flight.FlightServerBase):  # type: ignore[misc]
    """Where the driver or a slot is called.

    Args:
        location: The address.
        token: The token of the attempt, which callers must have.
        certificate: The certificate of the attempt; None: without TLS.
        serve: Takes what opened a call, what reads its rows and what writes to it, on a thread of the network. Raises a
            SlotProtocolError to refuse the call.
    """

    def __init__(
        self,
        location: str,
        token: str,
        certificate: AttemptCertificate | None,
        serve: Callable[[bytes | None, Any, Any], None],
    ) -> None:
        super().__init__(location, middleware={"token": TokenCheck(token)}, **server_options(certificate))
        self._serve = serve

    def do_exchange(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        try:
            self._serve(descriptor.command, reader, writer)
        except SlotProtocolError as error:
            raise flight.FlightUnauthenticatedError(str(error)) from error


def connect(location: str, certificate: AttemptCertificate | None) -> flight.FlightClient:
    """Returns a client of a driver or slot, which connects when it is first used."""
    options: dict[str, Any] = {"generic_options": [("grpc.enable_http_proxy", 0)]}  # no proxy leads to other workers
    if certificate is not None:
        options |= {"tls_root_certs": certificate.certificate, "cert_chain": certificate.certificate}
        options |= {"private_key": certificate.key, "override_hostname": _NAME}
    return flight.connect(location, **options)


def address_at(host: str, certificate: AttemptCertificate | None) -> str:
    """Returns the address of a driver or slot on a host, without its port."""
    scheme = "grpc" if certificate is None else "grpc+tls"
    return f"{scheme}://[{host}]" if ":" in host else f"{scheme}://{host}"  # of IPv6


def server_options(certificate: AttemptCertificate | None) -> dict[str, Any]:
    """Returns the options of a server that hears only who has the certificate; without TLS, everybody."""
    if certificate is None:
        return {}
    return {
        "tls_certificates": [(certificate.certificate, certificate.key)],
        "verify_client": True,
        "root_certificates": certificate.certificate,
    }

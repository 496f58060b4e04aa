"""A certificate authority that nobody knows, and a server with its certificate."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def private_authority(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """Returns the file of the authority's certificate, and what a server at 127.0.0.1 needs."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _certificate("a company's authority", authority, authority, is_authority=True)
    leaf = _certificate("127.0.0.1", server, authority, is_authority=False)
    bundle, chain = directory / "authority.pem", directory / "server.pem"
    bundle.write_bytes(root.public_bytes(Encoding.PEM))
    key = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain.write_bytes(key + leaf.public_bytes(Encoding.PEM))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain)
    return bundle, tls


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, *, is_authority: bool
) -> x509.Certificate:
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a company's authority")])
    now = datetime.now(timezone.utc)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(address, critical=False)
        .sign(signer, hashes.SHA256())
    )

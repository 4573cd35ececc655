"""Certificates for tests."""

import datetime as dt
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """Signs certificates."""

    def __init__(self, name="authority"):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self._name, self._key.public_key())

    def _sign(self, subject, public, hosts=None, usages=(), age=0):
        now = dt.datetime.now(dt.UTC) - dt.timedelta(hours=age)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        if usages:
            allowed = [getattr(ExtendedKeyUsageOID, usage) for usage in usages]
            builder = builder.add_extension(x509.ExtendedKeyUsage(allowed), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def issue(self, *hosts, key=None, usages=(), age=0):
        """A certificate for names or addresses, and its key: a new one, or the given one.

        Args:
            hosts: none: it names no host.
            key: the given one.
            usages: ``SERVER_AUTH``, ``CLIENT_AUTH``; none: all.
            age: hours; from 1 on it has expired.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0] if hosts else "-")])
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return self._sign(subject, key.public_key(), hosts, usages, age), private


def _name(host):
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

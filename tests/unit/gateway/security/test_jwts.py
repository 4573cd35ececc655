"""JWTs of another issuer."""

import base64
import hashlib
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import RSAAlgorithm

from parley_gateway.errors import GatewaySettingsError, UnauthorizedError
from parley_gateway.security.jwts import JwtVerifier
from parley_gateway.security.settings import JwtSettings

SECRET = "s" * 40
RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def public_pem(key):
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def jwks(*names):
    listed = [json.loads(RSAAlgorithm.to_jwk(RSA_KEY.public_key())) | {"kid": name} for name in names]
    return json.dumps({"keys": [key | {"alg": "RS256"} for key in listed]}).encode()


def claims(**changes):
    every = {
        "iss": "https://login.example",
        "aud": "parley",
        "sub": "anna",
        "exp": time.time() + 60,
        "scope": "agent profile email",
    } | changes
    return {name: value for name, value in every.items() if value is not None}


def verifier(tmp_path, key, *algorithms, **settings):
    (tmp_path / "key").write_bytes(key if isinstance(key, bytes) else key.encode())
    return JwtVerifier(
        JwtSettings(
            issuer="https://login.example", algorithms=algorithms, key_file=str(tmp_path / "key"), **settings
        )
    )


@pytest.fixture
def hs(tmp_path):
    return verifier(tmp_path, SECRET, "HS256")


@pytest.mark.parametrize(
    ("algorithm", "signer", "key"),
    [
        ("HS256", SECRET, SECRET),
        ("RS256", RSA_KEY, public_pem(RSA_KEY)),
        ("ES256", EC_KEY, public_pem(EC_KEY)),
        ("EdDSA", ED_KEY, public_pem(ED_KEY)),
    ],
)
def test_a_token_opens(tmp_path, algorithm, signer, key):
    token = jwt.encode(claims(), signer, algorithm)
    principal = verifier(tmp_path, key, algorithm).verify(token)
    assert principal.id == "jwt:anna"
    assert principal.scopes == {"agent"}
    assert principal.session_id is None
    with pytest.raises(UnauthorizedError):
        verifier(tmp_path, key, algorithm).verify(token[:-8] + "AAAAAAAA")


@pytest.mark.parametrize(
    ("claim", "agents"),
    [
        (None, None),
        (["restaurant", ""], {"restaurant", ""}),
        ("restaurant clinic", {"restaurant", "clinic"}),
        ([], set()),
        ("", set()),
        ({"restaurant": 1}, set()),
        ([1, ["restaurant"]], set()),
    ],
)
def test_claim_limits_the_agents(hs, claim, agents):
    principal = hs.verify(jwt.encode(claims(agents=claim), SECRET, "HS256"))
    assert principal.agents == agents


def test_scopes_may_be_a_list_and_a_session_may_be_named(hs):
    token = jwt.encode(claims(scope=["chat", "x"], session_id="s-1"), SECRET, "HS256")
    principal = hs.verify(token)
    assert principal.scopes == {"chat"}
    assert principal.session_id == "s-1"


def test_without_scopes_nothing_is_allowed(hs):
    assert hs.verify(jwt.encode(claims(scope=None), SECRET, "HS256")).scopes == frozenset()


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": 1},
        {"exp": None},
        {"exp": float("inf")},
        {"exp": 10**400},
        {"exp": float("nan")},
        {"nbf": float("inf")},
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"sub": None},
        {"sub": ""},
        {"sub": "x" * 200},
        {"sub": "a\nb"},
        {"session_id": 7},
        {"nbf": time.time() + 86_400},
    ],
)
def test_claims_have_to_hold(hs, changes):
    with pytest.raises(UnauthorizedError):
        hs.verify(jwt.encode(claims(**changes), SECRET, "HS256"))


def test_the_issuers_clock_may_be_a_little_off(hs):
    assert hs.verify(jwt.encode(claims(exp=time.time() - 5), SECRET, "HS256"))
    with pytest.raises(UnauthorizedError, match="expired"):
        hs.verify(jwt.encode(claims(exp=time.time() - 15), SECRET, "HS256"))


def encoded(part):
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", ""])
def test_a_token_without_a_signature_is_refused(tmp_path, algorithm):
    token = f"{encoded({'alg': algorithm, 'typ': 'JWT'})}.{encoded(claims())}."
    for check in (verifier(tmp_path, SECRET, "HS256"), verifier(tmp_path, public_pem(RSA_KEY), "RS256")):
        with pytest.raises(UnauthorizedError):
            check.verify(token)


def test_a_public_key_is_never_taken_for_a_secret(tmp_path):
    body = f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{encoded(claims())}"
    mac = hmac.new(public_pem(RSA_KEY).strip(), body.encode(), hashlib.sha256).digest()
    forged = f"{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    with pytest.raises(UnauthorizedError):
        verifier(tmp_path, public_pem(RSA_KEY), "RS256").verify(forged)


def test_another_algorithm_of_the_same_family_is_refused(tmp_path):
    with pytest.raises(UnauthorizedError):
        verifier(tmp_path, SECRET * 2, "HS256").verify(jwt.encode(claims(), SECRET * 2, "HS384"))


def test_a_key_set_is_searched_by_key_id(tmp_path):
    check = verifier(tmp_path, jwks("one", "two"), "RS256")
    for name, known in (("two", True), ("three", False), (None, False)):
        token = jwt.encode(claims(), RSA_KEY, "RS256", headers={"kid": name} if name else None)
        if known:
            assert check.verify(token)
        else:
            with pytest.raises(UnauthorizedError, match="key is not known"):
                check.verify(token)


def test_a_key_set_that_changes_is_read_again(tmp_path):
    check = verifier(tmp_path, jwks("one"), "RS256")
    token = jwt.encode(claims(), RSA_KEY, "RS256", headers={"kid": "next"})
    with pytest.raises(UnauthorizedError):
        check.verify(token)
    (tmp_path / "key").write_bytes(jwks("next"))
    check.reload()
    assert check.verify(token)


@pytest.mark.parametrize(
    "text", ["", "a.b.c", "....", "eyJhbGciOiJIUzI1NiJ9.e30.", "\x00.\x00.\x00", "é.é.é"]
)
def test_nonsense_is_refused(hs, text):
    with pytest.raises(UnauthorizedError):
        hs.verify(text)


@pytest.mark.parametrize(
    ("key", "algorithms", "why"),
    [
        (SECRET, ("HS256", "RS256"), "never both|either those"),
        (SECRET, (), "either those"),
        ("short", ("HS256",), "at least 32"),
        (public_pem(RSA_KEY), ("HS256",), "no secret"),
        ("nonsense", ("RS256",), "neither a PEM"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]}', ("RS256",), "secrets in it"),
        (
            RSA_KEY.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            ("RS256",),
            "keep the private one",
        ),
    ],
)
def test_settings_that_would_be_unsafe_are_refused(tmp_path, key, algorithms, why):
    with pytest.raises(GatewaySettingsError, match=why):
        verifier(tmp_path, key, *algorithms)


def test_an_audience_and_a_key_are_needed(tmp_path):
    with pytest.raises(GatewaySettingsError, match="are needed"):
        JwtVerifier(JwtSettings(issuer="x"))
    with pytest.raises(GatewaySettingsError, match="are needed"):
        verifier(tmp_path, SECRET, "HS256", audience="")

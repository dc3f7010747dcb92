"""Makes keys and tokens with PyJWT, and prints them as JSON: {"jwks": {name: JWKS}, "pem": {...}, "secret": ..., "tokens": {...}}."""
import base64, hashlib, hmac, json, time

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def text(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, size):
    return text(value.to_bytes(size, "big"))


def public(key):
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(kid, key):
    if isinstance(key, rsa.RSAPrivateKey):
        numbers = key.public_key().public_numbers()
        size = (numbers.n.bit_length() + 7) // 8
        return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": kid, "n": number(numbers.n, size), "e": number(numbers.e, 3)}
    if isinstance(key, ec.EllipticCurvePrivateKey):
        numbers = key.public_key().public_numbers()
        return {"kty": "EC", "crv": "P-256", "kid": kid, "x": number(numbers.x, 32), "y": number(numbers.y, 32)}
    return {"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": text(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))}


now = int(time.time())
keys = {
    "rsa": rsa.generate_private_key(65537, 2048),
    "ec": ec.generate_private_key(ec.SECP256R1()),
    "ed": ed25519.Ed25519PrivateKey.generate(),
    "new": ec.generate_private_key(ec.SECP256R1()),
    "stranger": rsa.generate_private_key(65537, 2048),
}
algorithms = {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA", "new": "ES256", "stranger": "RS256"}
secret = "a shared secret that is long enough, surely"
usual = {"iss": "https://issuer.example/", "aud": "api", "iat": now, "exp": now + 3600}


def make(key, kid=None, **claims):
    merged = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return jwt.encode(merged, keys[key], algorithm=algorithms[key], headers={"kid": kid or key})


def by_hand(header, claims, sign):
    message = text(json.dumps(header).encode()) + "." + text(json.dumps(claims).encode())
    return message + "." + text(sign(message.encode()))


def signed_by_hand(claims):
    """For claims that PyJWT refuses to write."""
    sign = lambda message: keys["rsa"].sign(message, padding.PKCS1v15(), hashes.SHA256())
    return by_hand({"alg": "RS256", "kid": "rsa"}, claims, sign)


def confused(pem):
    claims = {**usual, "sub": "mallory"}
    return by_hand({"alg": "HS256", "kid": "rsa"}, claims, lambda message: hmac.new(pem, message, hashlib.sha256).digest())


good = make("rsa", sub="alice")
tokens = {
    "rs256": make("rsa", sub="alice", plan="free", org="acme"),
    "es256": make("ec", sub="bob", plan="gold", org="acme"),
    "eddsa": make("ed", sub="carol"),
    "hs256": jwt.encode({**usual, "sub": "dave"}, secret, algorithm="HS256"),
    "new": make("new", sub="erin"),
    "made_up_kids": [make("rsa", kid=f"made-up-{n}", sub="mallory") for n in range(200)],
    "no_kid": jwt.encode({**usual, "sub": "alice"}, keys["rsa"], algorithm="RS256"),
    "invalid": {
        "expired": make("rsa", sub="alice", exp=now - 3600),
        "never_expires": make("rsa", sub="alice", exp=None),
        "not_yet": make("rsa", sub="alice", nbf=now + 3600),
        "issued_in_the_future": make("rsa", sub="alice", iat=now + 3600),
        "wrong_issuer": make("rsa", sub="alice", iss="https://other.example/"),
        "several_issuers": signed_by_hand({**usual, "sub": "alice", "iss": [usual["iss"], "https://other.example/"]}),
        "no_issuer": make("rsa", sub="alice", iss=None),
        "wrong_audience": make("rsa", sub="alice", aud="web"),
        "no_audience": make("rsa", sub="alice", aud=None),
        "stranger": make("stranger", kid="rsa", sub="alice"),
        "none": jwt.encode({**usual, "sub": "alice"}, None, algorithm="none"),
        "confused": confused(public(keys["rsa"])),
        "confused_stripped": confused(public(keys["rsa"]).strip()),
        "another_secret": jwt.encode({**usual, "sub": "alice"}, "another secret that is long enough, too", algorithm="HS256"),
        "unsigned": good.rsplit(".", 1)[0] + ".",
        "two_parts": good.rsplit(".", 1)[0],
        "changed": good[:-12] + ("A" if good[-12] != "A" else "B") + good[-11:],
        "garbage": "garbage",
        "empty": "",
        "huge": make("rsa", sub="x" * 9000),
    },
}
print(json.dumps({
    "jwks": {
        "old": {"keys": [jwk("rsa", keys["rsa"]), jwk("ec", keys["ec"]), jwk("ed", keys["ed"])]},
        "rotated": {"keys": [jwk("new", keys["new"]), jwk("ec", keys["ec"])]},
    },
    "pem": public(keys["rsa"]).decode(),
    "secret": secret,
    "tokens": tokens,
}))

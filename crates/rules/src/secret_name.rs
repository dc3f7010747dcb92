//! Names of headers and parameters that contain secrets.

/// Returns `true` if a header or parameter with this name contains a secret, such as a credential. In doubt, `true`.
///
/// ```
/// use tidegate_rules::is_secret_name;
///
/// assert!(is_secret_name("X-Api-Key") && is_secret_name("access_token"));
/// assert!(!is_secret_name("page") && !is_secret_name("country_code"));
/// ```
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    if SECRET_PARTS.iter().any(|part| lower.contains(part)) {
        return true;
    }
    let (mut before, mut is_secret) = (String::new(), false);
    for word in words(name) {
        let is_ordinary = ORDINARY_CODES.contains(&before.as_str());
        is_secret |=
            SECRET_WORDS.contains(&word.as_str()) || (matches!(word.as_str(), "code" | "codes") && !is_ordinary);
        before = word;
    }
    is_secret
}

/// A name that contains any of these is that of a secret.
const SECRET_PARTS: [&str; 21] = [
    "2fa",
    "assertion",
    "auth",
    "bearer",
    "cookie",
    "cred",
    "csrf",
    "hmac",
    "jwt",
    "key",
    "pass",
    "private",
    "pwd",
    "saml",
    "secret",
    "session",
    "sid",
    "sig",
    "ticket",
    "token",
    "xsrf",
];
/// Too short to be searched within other words: `opinion` and `footprint` are not secrets.
const SECRET_WORDS: [&str; 10] = ["cvc", "cvv", "hotp", "magic", "mfa", "otp", "pin", "sess", "ssn", "totp"];
/// Words before `code` that make the name harmless. With any other word, it is taken for an access code.
const ORDINARY_CODES: [&str; 21] = [
    "airport", "area", "color", "country", "currency", "dial", "error", "exit", "item", "lang", "language", "locale",
    "post", "postal", "product", "reason", "region", "response", "state", "status", "zip",
];

/// Splits `zip_code`, `zip-code` or `zipCode` into words, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for char in name.chars() {
        if !char.is_ascii_alphabetic() || (char.is_ascii_uppercase() && was_small) {
            words.push(String::new());
        }
        was_small = char.is_ascii_lowercase();
        if let (Some(word), true) = (words.last_mut(), char.is_ascii_alphabetic()) {
            word.push(char.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_in_whatever_way_they_are_written() {
        for name in [
            "otp",
            "X-OTP",
            "otp_code",
            "totp",
            "pin",
            "userPin",
            "user-pin",
            "bearer",
            "passwd",
            "pwd",
            "userPwd",
            "code",
            "access_code",
            "accessCode",
            "code_verifier",
            "reset-code",
            "verification_code",
            "PHPSESSID",
            "JSESSIONID",
            "sess",
            "sess_id",
            "connect.sid",
            "X-CSRF-Token",
            "_xsrf",
            "SAMLResponse",
            "client_assertion",
            "ticket",
            "cvv",
            "ssn",
            "mfa",
            "2fa",
            "private",
            "X-Api-Key",
            "X-Amz-Signature",
            "recovery_codes",
            "otp1",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn ordinary_names_are_not_hidden() {
        for name in [
            "country_code",
            "countryCode",
            "country-code",
            "zip_code",
            "zipcode",
            "postalCode",
            "statuscode",
            "language_code",
            "error_code",
            "opinion",
            "spinner",
            "shipping",
            "footprint",
            "encoding",
            "decoder",
            "assess",
            "x-tenant",
            "page",
            "q",
            "user",
            "tier",
            "currency_code",
            "barcode",
            "magical",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}

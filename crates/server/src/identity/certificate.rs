//! Reads the user from a client certificate.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::der::{Der, OBJECT_IDENTIFIER, SEQUENCE, SET};

/// Name in a verified client certificate that identifies the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateName {
    /// The common name of the subject.
    CommonName,
    /// The DNS name among the subject alternative names, if there is exactly one.
    Dns,
    /// The URI among the subject alternative names, if there is exactly one: `spiffe://…`, for example.
    Uri,
}

/// Object identifier 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;

impl CertificateName {
    /// The user named in a certificate, which must be verified already; `None` if it has no such name, or several.
    pub(crate) fn user(self, certificate: &CertificateDer<'_>) -> Option<String> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        match self {
            CertificateName::CommonName => common_name(certificate.subject()),
            CertificateName::Dns => only(certificate.valid_dns_names()),
            CertificateName::Uri => only(certificate.valid_uri_names()),
        }
    }
}

fn only<'n>(mut names: impl Iterator<Item = &'n str>) -> Option<String> {
    match (names.next(), names.next()) {
        (Some(name), None) => Some(name.to_owned()),
        _ => None,
    }
}

/// The common name of a subject, which is a list of sets of attributes, each an identifier with a value. `None` if
/// there are several common names, or the subject is malformed.
fn common_name(subject: &[u8]) -> Option<String> {
    let (mut sets, mut found) = (Der::new(subject), None);
    while let Some(mut attributes) = sets.inside(SET) {
        while let Some(mut attribute) = attributes.inside(SEQUENCE) {
            if attribute.value(OBJECT_IDENTIFIER)? != COMMON_NAME {
                continue;
            }
            let (UTF8_STRING | PRINTABLE_STRING | IA5_STRING, name) = attribute.next()? else { return None };
            let name = std::str::from_utf8(name).ok()?;
            if found.replace(name).is_some() {
                return None;
            }
        }
        if !attributes.is_at_end() {
            return None;
        }
    }
    found.filter(|name| !name.is_empty() && sets.is_at_end()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(names: &[&str], uri: Option<&str>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["ann.example".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        for name in names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names.extend(uri.map(|uri| SanType::URI(uri.try_into().unwrap())));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_names_its_user_where_it_is_told_to_look() {
        let known = certificate(&["Ann Müller"], Some("spiffe://example.org/ann"));
        assert_eq!(CertificateName::CommonName.user(&known).as_deref(), Some("Ann Müller"));
        assert_eq!(CertificateName::Dns.user(&known).as_deref(), Some("ann.example"));
        assert_eq!(CertificateName::Uri.user(&known).as_deref(), Some("spiffe://example.org/ann"));
    }

    #[test]
    fn a_certificate_without_such_a_name_names_nobody() {
        let unnamed = certificate(&[], None);
        assert_eq!(CertificateName::CommonName.user(&unnamed), None);
        assert_eq!(CertificateName::Uri.user(&unnamed), None);
        assert_eq!(CertificateName::Dns.user(&CertificateDer::from(vec![0x30, 0])), None);
    }
}

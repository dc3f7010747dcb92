//! Certificates and their authorities.
#![allow(dead_code, unreachable_pub, reason = "not every test needs everything")]
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

pub type Authority = CertifiedIssuer<'static, KeyPair>;

/// A certificate authority. Clients find authorities by name, so names should be unique.
pub fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, as PEM.
pub fn issued(by: &Authority) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    (params.signed_by(&key, by).unwrap().pem(), key.serialize_pem())
}

//! No spelling of a path bypasses its rule.

use crate::rules::support::{get, governs, key, rule, when};

#[test]
fn spellings_of_a_path_are_one_path() {
    let rules = when("path: /admin/users");
    for spelling in [
        "/admin/users",
        "/admin/users/",
        "/admin/users//",
        "//admin/users",
        "///admin///users",
        "/./admin/./users",
        "/x/../admin/users",
        "/admin/x/../users",
        "/admin/users/x/..",
        "/../../admin/users",
        "/%2e/admin/users",
        "/%2E%2e/admin/users",
        "/x/%2e%2E/admin/users",
        "/x/.%2e/admin/users",
        "/%61dmin/users",
        "/%61%64%6d%69%6E/%75sers",
        "/admin/users?x=/other",
        "/admin/users#fragment",
        "admin/users",
        "/admin/users%20",
        "/admin./users..",
        "/admin/users/...",
    ] {
        assert!(governs(&rules, &get(spelling)), "{spelling}");
    }
}

#[test]
fn other_paths_are_other_paths() {
    let rules = when("path: /admin/users");
    for other in [
        "/Admin/users",
        "/admin%2Fusers",
        "/admin%2fusers",
        "/admin\\users",
        "/admin%5cusers",
        "/admin/users%00",
        "/admin/users;x=1",
        "/admin/users/x",
        "/admin/%252e%252e/admin/users",
        "/%2561dmin/users",
        "/admin/users%",
        "/admin/users%2",
    ] {
        assert!(!governs(&rules, &get(other)), "{other}");
    }
}

#[test]
fn an_encoded_slash_does_not_split_a_segment() {
    let rules = rule("limit: 1/s, match: { path: '/files/{name}' }, key: 'path:name'");
    assert_eq!(key(&rules, &get("/files/a%2fb")), Some(vec!["a%2Fb".to_owned()]));
    assert_eq!(key(&rules, &get("/files/%2e%2e%2fetc")), Some(vec!["..%2Fetc".to_owned()]));
}

#[test]
fn the_key_of_a_route_does_not_depend_on_the_spelling() {
    let rules = rule("limit: 1/s, match: { path: ['/a/{id}', /b] }, key: route");
    for spelling in ["/a/1", "/a/2/", "//a/%31", "/b/../a/1"] {
        assert_eq!(key(&rules, &get(spelling)), Some(vec!["/a/{id}".to_owned()]), "{spelling}");
    }
}

#[test]
fn an_endless_path_takes_no_endless_time() {
    let rules = rule("limit: 1/s, match: { path: '/**/a/{id}/a/**' }, key: 'path:id'");
    let path = "/a".repeat(100_000);
    assert_eq!(key(&rules, &get(&path)), Some(vec!["a".to_owned()]));
    let path = format!("{}/b", "/a/b".repeat(50_000));
    assert_eq!(key(&rules, &get(&path)), Some(vec!["b".to_owned()]));
    let none = rule("limit: 1/s, match: { path: '/**/a/b/c/d/{id}' }, key: 'path:id'");
    assert_eq!(key(&none, &get(&"/a/b/c".repeat(50_000))), None);
}

//! Matching of requests' descriptors against a file.

use super::{found, rules, ruling};

/// Checks a table of requests and their limits.
fn check(text: &str, table: &[(&str, &str)]) {
    let rules = rules(text);
    let domain = rules.domain("d").unwrap();
    for (asked, expected) in table {
        assert_eq!(ruling(domain, asked), *expected, "{asked:?} in {text}");
    }
}

#[test]
fn key_and_value_win_then_patterns_then_the_key() {
    check(
        "
domain: d
descriptors:
  - { key: path, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: path, value: /a/*, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: path, value: /a/b, rate_limit: { unit: second, requests_per_unit: 3 } }
",
        &[
            ("path=/a/b", "3/second"),
            ("path=/a/c", "2/second"),
            ("path=/b", "1/second"),
            ("path=", "1/second"),
            ("host=x", "-"),
        ],
    );
}

#[test]
fn patterns_are_tried_in_the_order_of_the_file() {
    check(
        "
domain: d
descriptors:
  - { key: a, value: x*, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: a, value: xy*, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: a, value: '*z', rate_limit: { unit: second, requests_per_unit: 3 } }
  - { key: b, value: p*q*r, rate_limit: { unit: second, requests_per_unit: 4 } }
",
        &[
            ("a=xy", "1/second"),
            ("a=yz", "3/second"),
            ("a=xz", "1/second"),
            ("a=y", "-"),
            ("b=pqr", "4/second"),
            ("b=p1q2r", "4/second"),
            ("b=p1r2q", "-"),
        ],
    );
}

#[test]
fn patterns_work_below_the_top() {
    check(
        "
domain: d
descriptors:
  - key: tenant
    descriptors:
      - { key: path, value: /a/*, rate_limit: { unit: hour, requests_per_unit: 7 } }
",
        &[("tenant=t path=/a/b", "7/hour"), ("tenant=t path=/b", "-")],
    );
}

#[test]
fn matched_descriptors_are_final() {
    check(
        "
domain: d
descriptors:
  - { key: a, value: x, descriptors: [{ key: b, value: '1', rate_limit: { unit: second, requests_per_unit: 1 } }] }
  - { key: a, value: x*, descriptors: [{ key: b, value: '2', rate_limit: { unit: second, requests_per_unit: 2 } }] }
  - { key: a, descriptors: [{ key: b, rate_limit: { unit: second, requests_per_unit: 3 } }] }
",
        &[
            ("a=x b=1", "1/second"),
            ("a=x b=2", "-"),
            ("a=xx b=2", "2/second"),
            ("a=xx b=1", "-"),
            ("a=y b=1", "3/second"),
        ],
    );
}

#[test]
fn a_limit_applies_to_requests_that_end_at_its_level() {
    check(
        "
domain: d
descriptors:
  - key: a
    rate_limit: { unit: second, requests_per_unit: 1 }
    descriptors:
      - { key: b, rate_limit: { unit: second, requests_per_unit: 2 } }
",
        &[
            ("a=x", "1/second"),
            ("a=x b=y", "2/second"),
            ("a=x b=y c=z", "-"),
            ("a=x c=z", "-"),
            ("b=y", "-"),
            ("", "-"),
        ],
    );
}

#[test]
fn nothing_said_and_nothing_below_is_a_whitelist() {
    check(
        "
domain: d
descriptors:
  - { key: a, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: a, value: ours }
  - { key: b, descriptors: [{ key: c }] }
",
        &[("a=ours", "whitelisted"), ("a=ours b=x", "-"), ("b=x", "-"), ("b=x c=y", "whitelisted")],
    );
}

#[test]
fn unlimited_is_told_apart_from_unknown() {
    check(
        "
domain: d
descriptors:
  - { key: a, rate_limit: { unlimited: true } }
",
        &[("a=x", "unlimited"), ("b=x", "-")],
    );
}

#[test]
fn keys_and_values_are_compared_joined() {
    check(
        "
domain: d
descriptors:
  - { key: a_b, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: c, value: d_e, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: user, value: '*', rate_limit: { unit: second, requests_per_unit: 3 } }
  - { key: any*, rate_limit: { unit: second, requests_per_unit: 4 } }
",
        &[
            ("a=b", "1/second"),
            ("a_b=x", "1/second"),
            ("c_d=e", "2/second"),
            ("user=1", "3/second"),
            ("user_id=1", "3/second"),
            ("anything=1", "4/second"),
        ],
    );
}

#[test]
fn case_matters_in_keys_and_values_but_not_in_units() {
    check(
        "
domain: d
descriptors:
  - { key: a, value: x, rate_limit: { unit: SECOND, requests_per_unit: 1 } }
  - { key: b, rate_limit: { unit: Year, requests_per_unit: 1 } }
",
        &[("a=x", "1/second"), ("A=x", "-"), ("a=X", "-"), ("b=x", "1/year")],
    );
}

#[test]
fn values_are_taken_as_they_are_written() {
    check(
        "
domain: d
descriptors:
  - { key: code, value: 404, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: code, value: 0x10, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: flag, value: True, rate_limit: { unit: second, requests_per_unit: 3 } }
  - { key: flag, value: yes, rate_limit: { unit: second, requests_per_unit: 4 } }
  - { key: version, value: 1.2.3, rate_limit: { unit: second, requests_per_unit: 5 } }
  - { key: empty, value: '', rate_limit: { unit: second, requests_per_unit: 6 } }
  - { key: nothing, value: , rate_limit: { unit: second, requests_per_unit: 010 } }
",
        &[
            ("code=404", "1/second"),
            ("code=0x10", "2/second"),
            ("code=16", "-"),
            ("flag=True", "3/second"),
            ("flag=true", "-"),
            ("flag=yes", "4/second"),
            ("version=1.2.3", "5/second"),
            ("empty=x", "6/second"),
            ("nothing=x", "8/second"),
        ],
    );
}

#[test]
fn metrics_are_named_by_the_file_unless_it_asks_for_values() {
    let rules = rules(
        "
domain: d
descriptors:
  - key: a
    value: x
    descriptors: [{ key: b, rate_limit: { unit: second, requests_per_unit: 1 } }]
  - key: p
    value: x*
    rate_limit: { unit: second, requests_per_unit: 1 }
  - key: v
    value_to_metric: true
    descriptors:
      - { key: w, rate_limit: { unit: second, requests_per_unit: 1 } }
      - { key: w, value: y*, value_to_metric: true, rate_limit: { unit: second, requests_per_unit: 1 } }
      - { key: w, value: z*, rate_limit: { unit: second, requests_per_unit: 1 } }
      - { key: w, value: s*, value_to_metric: true, share_threshold: true, rate_limit: { unit: second, requests_per_unit: 1 } }
  - key: l
    descriptors:
      - { key: m, detailed_metric: true, rate_limit: { unit: second, requests_per_unit: 1 } }
  - key: s
    value: t*
    share_threshold: true
    descriptors:
      - { key: m, detailed_metric: true, rate_limit: { unit: second, requests_per_unit: 1 } }
",
    );
    let domain = rules.domain("d").unwrap();
    for (asked, metric) in [
        ("a=x b=1", "d.a_x.b"),
        ("p=xyz", "d.p_x*"),
        ("v=1 w=2", "d.v_1.w"),
        ("v=1 w=yy", "d.v_1.w_yy"),
        ("v=1 w=zz", "d.v_1.w_z*"),
        ("v=1 w=ss", "d.v_1.w_s*"),
        ("l=1 m=2", "d.l_1.m_2"),
        ("s=tt m=2", "d.s_t*.m_2"),
    ] {
        found(domain, asked, |found| assert_eq!(found.unwrap().metric(), metric, "{asked}"));
    }
}
